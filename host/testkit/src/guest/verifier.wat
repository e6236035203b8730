  (type $http-answer (record
    (field "status" u16) (field "headers" (list (tuple string string))) (field "body" (list u8)) (field "truncated" bool)))
  (type $any-answer (variant
    (case "http" $http-answer) (case "emitted") (case "stored" (option (list u8)))
    (case "mailed" string) (case "model" string) (case "worker" string)))
  (type $receipt (record
    (field "id" string) (field "kind" string) (field "node" string) (field "key" string)
    (field "idempotency-key" (option string)) (field "request" string) (field "sent-at" u64)))
  (type $verdict (variant (case "applied" $any-answer) (case "not-applied") (case "inconclusive" string)))
  (func $verify (param "receipt" $receipt) (result $verdict)
    (canon lift (core func $main "verify") (memory $libc "memory") (realloc (func $libc "realloc"))))
  (component $reconcile-shape
    (type $http-answer' (record
      (field "status" u16) (field "headers" (list (tuple string string))) (field "body" (list u8)) (field "truncated" bool)))
    (import "http-response" (type $http-answer (eq $http-answer')))
    (type $any-answer' (variant
      (case "http" $http-answer) (case "emitted") (case "stored" (option (list u8)))
      (case "mailed" string) (case "model" string) (case "worker" string)))
    (import "answer" (type $any-answer (eq $any-answer')))
    (type $receipt' (record
      (field "id" string) (field "kind" string) (field "node" string) (field "key" string)
      (field "idempotency-key" (option string)) (field "request" string) (field "sent-at" u64)))
    (import "receipt" (type $receipt (eq $receipt')))
    (type $verdict' (variant (case "applied" $any-answer) (case "not-applied") (case "inconclusive" string)))
    (import "verdict" (type $verdict (eq $verdict')))
    (import "verify" (func $verify (param "receipt" $receipt) (result $verdict)))
    (export $exported-http "http-response" (type $http-answer'))
    (type $exported-any' (variant
      (case "http" $exported-http) (case "emitted") (case "stored" (option (list u8)))
      (case "mailed" string) (case "model" string) (case "worker" string)))
    (export $exported-any "answer" (type $exported-any'))
    (export $exported-receipt "receipt" (type $receipt'))
    (type $exported-verdict' (variant (case "applied" $exported-any) (case "not-applied") (case "inconclusive" string)))
    (export $exported-verdict "verdict" (type $exported-verdict'))
    (export "verify" (func $verify) (func (param "receipt" $exported-receipt) (result $exported-verdict)))
  )
  (instance $reconcile (instantiate $reconcile-shape
    (with "http-response" (type $http-answer))
    (with "answer" (type $any-answer))
    (with "receipt" (type $receipt))
    (with "verdict" (type $verdict))
    (with "verify" (func $verify))))
  (export "counterfoil:block/reconcile@0.1.0" (instance $reconcile))
