;; A program that prints some bytes.
(component
  (import "wasi:io/error@0.2.0" (instance $errors (export "error" (type (sub resource)))))
  (alias export $errors "error" (type $error))
  (import "wasi:io/streams@0.2.0" (instance $streams
    (export "output-stream" (type $stream (sub resource)))
    (alias outer 1 $error (type $outer-error))
    (export "error" (type $error (eq $outer-error)))
    (type $own-error (own $error))
    (type $failure (variant (case "last-operation-failed" $own-error) (case "closed")))
    (export "stream-error" (type $stream-error (eq $failure)))
    (type $self (borrow $stream))
    (export "[method]output-stream.blocking-write-and-flush"
      (func (param "self" $self) (param "contents" (list u8)) (result (result (error $stream-error)))))))
  (alias export $streams "output-stream" (type $stream))
  (import "wasi:cli/stdout@0.2.0" (instance $stdout
    (alias outer 1 $stream (type $outer-stream))
    (export "output-stream" (type $stream (eq $outer-stream)))
    (type $own-stream (own $stream))
    (export "get-stdout" (func (result $own-stream)))))
  (core module $memory (memory (export "memory") 1) (data (i32.const 0) "@BYTES@"))
  (core instance $memory (instantiate $memory))
  (core func $get (canon lower (func $stdout "get-stdout")))
  (core func $write
    (canon lower (func $streams "[method]output-stream.blocking-write-and-flush") (memory $memory "memory")))
  (core module $main
    (import "host" "get" (func $get (result i32)))
    (import "host" "write" (func $write (param i32 i32 i32 i32)))
    (func (export "run") (result i32)
      (call $write (call $get) (i32.const 0) (i32.const @LEN@) (i32.const 64))
      (i32.const 0)))
  (core instance $main
    (instantiate $main (with "host" (instance (export "get" (func $get)) (export "write" (func $write))))))
  (func $run (result (result)) (canon lift (core func $main "run")))
  (instance $program (export "run" (func $run)))
  (export "wasi:cli/run@0.2.0" (instance $program)))
