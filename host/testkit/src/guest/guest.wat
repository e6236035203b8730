(component
  (type $effects-shape (instance
    (type $headers (list (tuple string string)))
    (type $safety' (enum "at-most-once" "idempotent" "read-only"))
    (export "safety" (type $safety (eq $safety')))
    (type $http-request' (record
      (field "method" string) (field "url" string) (field "headers" $headers) (field "body" (list u8))))
    (export "http-request" (type $http-request (eq $http-request')))
    (type $http-response' (record
      (field "status" u16) (field "headers" $headers) (field "body" (list u8)) (field "truncated" bool)))
    (export "http-response" (type $http-response (eq $http-response')))
    (type $event' (record (field "event-type" string) (field "record-id" (option string)) (field "data" string)))
    (export "event" (type $event (eq $event')))
    (type $storage-request' (variant
      (case "get" string) (case "put" (tuple string (list u8))) (case "delete" string)))
    (export "storage-request" (type $storage-request (eq $storage-request')))
    (type $mail-message' (record
      (field "to" (list string)) (field "subject" string) (field "text" string)
      (field "html" (option string)) (field "headers" $headers)))
    (export "mail-message" (type $mail-message (eq $mail-message')))
    (type $worker-task' (record (field "queue" string) (field "input" string)))
    (export "worker-task" (type $worker-task (eq $worker-task')))
    (type $request' (variant
      (case "http" $http-request) (case "emit" $event) (case "storage" $storage-request)
      (case "mail" $mail-message) (case "model" string) (case "worker" $worker-task)))
    (export "request" (type $request (eq $request')))
    (type $answer' (variant
      (case "http" $http-response) (case "emitted") (case "stored" (option (list u8)))
      (case "mailed" string) (case "model" string) (case "worker" string)))
    (export "answer" (type $answer (eq $answer')))
    (type $effect' (record
      (field "request" $request) (field "key" (option string)) (field "connection" (option string))
      (field "safety" (option $safety)) (field "idempotency-key" (option string))
      (field "timeout-ms" (option u32)) (field "extra" $headers)))
    (export "effect" (type $effect (eq $effect')))
    (type $failure' (variant
      (case "denied" string) (case "not-sent" string) (case "rejected" $http-response)
      (case "no-answer" string) (case "response-too-large" $http-response) (case "limit" string)))
    (export "failure" (type $failure (eq $failure')))
    (export "perform" (func (param "effect" $effect) (result (result $answer (error $failure)))))
  ))
  (import "counterfoil:block/effects@0.1.0" (instance $effects (type $effects-shape)))

  (type $context-shape (instance
    (type $level' (enum "trace" "debug" "info" "warn" "error"))
    (export "level" (type $level (eq $level')))
    (type $step-place' (record (field "lineage" string) (field "node" string) (field "iteration" (list u32))))
    (export "step-place" (type $step-place (eq $step-place')))
    (export "place" (func (result $step-place)))
    (export "started-at" (func (result u64)))
    (export "random" (func (param "len" u32) (result (list u8))))
    (export "log" (func (param "level" $level) (param "message" string)))
  ))
  (import "counterfoil:block/context@0.1.0" (instance $context (type $context-shape)))

  ;; The main memory, and an allocator that only moves on.
  (core module $libc
    (memory (export "memory") 2)
    (global $next (mut i32) (i32.const 65536))
    (func (export "realloc") (param $old i32) (param $old-len i32) (param $align i32) (param $len i32) (result i32)
      (local $at i32)
      @REALLOC@
      (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
      (global.set $next (i32.add (local.get $at) (local.get $len)))
      (if (i32.gt_u (global.get $next) (i32.mul (memory.size) (i32.const 65536)))
        (then
          (if (i32.lt_s
                (memory.grow (i32.add (i32.shr_u (local.get $len) (i32.const 16)) (i32.const 1)))
                (i32.const 0))
            (then (unreachable)))))
      (local.get $at))
  )
  (core instance $libc (instantiate $libc))

  ;; A second memory and a table, to grow.
  (core module $other
    (memory 0)
    (table 0 funcref)
    (func (export "grow-memory") (param i32) (result i32) (memory.grow (local.get 0)))
    (func (export "grow-table") (param i32) (result i32) (table.grow (ref.null func) (local.get 0)))
    (func (export "fill") (param i32) (memory.fill (i32.const 0) (i32.const 1) (local.get 0)))
  )
  (core instance $other (instantiate $other))

  (core func $perform (canon lower (func $effects "perform")
    (memory $libc "memory") (realloc (func $libc "realloc"))))
  (core func $place (canon lower (func $context "place") (memory $libc "memory") (realloc (func $libc "realloc"))))
  (core func $started-at (canon lower (func $context "started-at")))
  (core func $random (canon lower (func $context "random") (memory $libc "memory") (realloc (func $libc "realloc"))))
  (core func $log (canon lower (func $context "log") (memory $libc "memory")))

  (core module $main
    (import "host" "perform" (func $perform (param $effect i32) (param $result i32)))
    (import "host" "place" (func $place (param $result i32)))
    (import "host" "started-at" (func $started-at (result i64)))
    (import "host" "random" (func $random (param $len i32) (param $result i32)))
    (import "host" "log" (func $log (param $level i32) (param $at i32) (param $len i32)))
    (import "libc" "memory" (memory 0))
    (import "libc" "realloc" (func $realloc (param i32 i32 i32 i32) (result i32)))
    (import "other" "grow-memory" (func $grow-other-memory (param i32) (result i32)))
    (import "other" "grow-table" (func $grow-table (param i32) (result i32)))
    (import "other" "fill" (func $fill (param i32)))

    ;; Writes `ok` with a text into the result area.
    (func $ok (param $at i32) (param $len i32) (result i32)
      (i32.store8 (i32.const 16) (i32.const 0))
      (i32.store (i32.const 24) (local.get $at))
      (i32.store (i32.const 28) (local.get $len))
      (i32.const 16))

    ;; Writes `permanent` or, with a delay, `transient`; code and message are texts.
    (func $failed (param $is-permanent i32) (param $code i32) (param $code-len i32)
        (param $message i32) (param $message-len i32) (param $delay i64) (result i32)
      (i32.store8 (i32.const 16) (i32.const 1))
      (i32.store8 (i32.const 24) (local.get $is-permanent))
      (i32.store (i32.const 32) (local.get $code))
      (i32.store (i32.const 36) (local.get $code-len))
      (i32.store (i32.const 40) (local.get $message))
      (i32.store (i32.const 44) (local.get $message-len))
      (i32.store8 (i32.const 48) (i64.ge_s (local.get $delay) (i64.const 0)))
      (i64.store (i32.const 56) (local.get $delay))
      (i32.const 16))

    (func $describe (export "describe") (result i32)
      @DESCRIBE@)
    (func $run (export "run") (param $input i32) (param $len i32) (result i32)
      @RUN@)
    @ITEMS@
    @DATA@
  )
  (core instance $main (instantiate $main
    (with "host" (instance
      (export "perform" (func $perform))
      (export "place" (func $place))
      (export "started-at" (func $started-at))
      (export "random" (func $random))
      (export "log" (func $log))))
    (with "libc" (instance $libc))
    (with "other" (instance $other))))

  (type $reason (record (field "code" string) (field "message" string)))
  (type $failure (variant (case "transient" (tuple $reason (option u64))) (case "permanent" $reason)))
  (func $describe (result string)
    (canon lift (core func $main "describe") (memory $libc "memory")))
  (func $run (param "input" string) (result (result string (error $failure)))
    (canon lift (core func $main "run") (memory $libc "memory") (realloc (func $libc "realloc"))))

  ;; Types in an exported interface must themselves be exported.
  (component $step-shape
    (type $reason' (record (field "code" string) (field "message" string)))
    (import "reason" (type $reason (eq $reason')))
    (type $failure' (variant (case "transient" (tuple $reason (option u64))) (case "permanent" $reason)))
    (import "failure" (type $failure (eq $failure')))
    (import "describe" (func $describe (result string)))
    (import "run" (func $run (param "input" string) (result (result string (error $failure)))))
    (export $exported-reason "reason" (type $reason'))
    (type $exported-failure' (variant
      (case "transient" (tuple $exported-reason (option u64))) (case "permanent" $exported-reason)))
    (export $exported-failure "failure" (type $exported-failure'))
    (export "describe" (func $describe) (func (result string)))
    (export "run" (func $run) (func (param "input" string) (result (result string (error $exported-failure)))))
  )
  (instance $step (instantiate $step-shape
    (with "reason" (type $reason))
    (with "failure" (type $failure))
    (with "describe" (func $describe))
    (with "run" (func $run))))
  (export "counterfoil:block/step@0.1.0" (instance $step))
)
