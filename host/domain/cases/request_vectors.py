"""Prints requests.json: fingerprints of requests, computed independently of the Rust code.

JSON is written down by RFC 8785: no white space, names in the order of their UTF-16 code units, numbers as ECMAScript
prints them.
"""
import hashlib, json, struct, uuid

LINEAGE = 1
SECRET = {"authorization", "cookie", "proxy-authorization", "set-cookie", "x-api-key", "idempotency-key"}

def number(value):
    value = float(value)
    if value == 0:
        return "0"
    mantissa, exponent = ("%r" % abs(value)).lower().split("e") if "e" in repr(value).lower() else (repr(abs(value)), "0")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits, point = (whole + fraction).lstrip("0"), len(whole) + int(exponent)
    if not whole.strip("0"):
        point -= len(fraction) - len(fraction.lstrip("0")) + len(whole)
    digits = digits.rstrip("0") or "0"
    n, k = point, len(digits)
    if k <= n <= 21:
        text = digits + "0" * (n - k)
    elif 0 < n <= 21:
        text = digits[:n] + "." + digits[n:]
    elif -6 < n <= 0:
        text = "0." + "0" * -n + digits
    else:
        text = digits[0] + ("." + digits[1:] if k > 1 else "") + "e" + ("+" if n > 0 else "-") + str(abs(n - 1))
    return ("-" if value < 0 else "") + text

def string(text):
    escapes = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
    return '"' + "".join(escapes.get(c) or ("\\u%04x" % ord(c) if ord(c) < 0x20 else c) for c in text) + '"'

def canonical(value):
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, str):
        return string(value)
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    names = sorted(value, key=lambda name: name.encode("utf-16-be"))
    return "{" + ",".join(string(name) + ":" + canonical(value[name]) for name in names) + "}"

def sha256(text):
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).digest()

def part(b): return struct.pack(">I", len(b)) + b

def vector(method, url, connection, headers, body):
    is_json = any(name.lower() == "content-type" and "json" in value for name, value in headers)
    body_canonical = canonical(json.loads(body)) if is_json else body
    where = {"connection": connection, "kind": "http", "method": method, "url": url}
    kept = sorted([name.lower(), value] for name, value in headers if name.lower() not in SECRET)
    what = where | {"body": sha256(body_canonical).hex(), "headers": kept}
    destination, request = sha256(canonical(where)), sha256(canonical(what))
    content = b"counterfoil-content-v1\x00" + b"".join(
        part(p) for p in [b"lineage", uuid.UUID(int=LINEAGE).bytes, b"http", destination, request])
    return {"method": method, "url": url, "connection": connection, "headers": headers, "body": body,
            "canonical_body": body_canonical, "destination": destination.hex(), "request_hash": request.hex(),
            "content_key": sha256(content)[:16].hex()}

J = ["Content-Type", "application/json"]
print(json.dumps([
    vector("POST", "/charges", "payments", [J], '{"cents":500,"order":"o-1"}'),
    vector("POST", "/charges", "payments", [J], '{ "order" : "o-1", "cents" : 5e2 }'),
    vector("POST", "/charges", "payments", [["x-b", "2"], ["X-A", "1"], J, ["Authorization", "Bearer x"]], "{}"),
    vector("POST", "/charges", "payments", [["content-type", "application/vnd.api+json; charset=utf-8"]], '[1.0,-0.0,0.1]'),
    vector("PUT", "https://api.example.com/a?b=c", None, [["content-type", "text/plain"], ["Idempotency-Key", "k"]],
           '{ "not": "json" }'),
    vector("GET", "/leads/7", "crm", [], ""),
    # Names in RFC 8785's order, which is neither that of code points nor that of UTF-8.
    vector("POST", "/", "p", [J], '{"\\ufb33":1,"\\ud83d\\ude02":2,"\\u20ac":3,"\\r":4,"1":5,"\\u0080":6,"\\u00f6":7}'),
    # Numbers of RFC 8785, appendix B, and their neighbours.
    vector("POST", "/", "p", [J], "[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001,1e21,1e20,"
           "9007199254740991,1e-6,1e-7,123456789012345680000,-1.5]"),
    vector("POST", "/", "p", [J], '{"text":"\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/","flags":[null,true,false]}'),
], indent=1, ensure_ascii=False))
