"""Prints identity.json: receipt ids computed independently of the Rust code, from the layout in docs/promise.md."""
import hashlib, json, struct, uuid

def part(b): return struct.pack(">I", len(b)) + b

def receipt_id(tenant, lineage, epoch, node, iteration, label, ordinal, number):
    key = b"\x00" + label.encode() if label is not None else b"\x01" + struct.pack(">Q", ordinal)
    body = b"counterfoil-effect-v1\x00" + b"".join(part(p) for p in [
        uuid.UUID(int=tenant).bytes, uuid.UUID(int=lineage).bytes, struct.pack(">Q", epoch), node.encode(),
        b"".join(struct.pack(">I", i) for i in iteration), key, struct.pack(">Q", number)])
    d = bytearray(hashlib.sha256(body).digest()[:16])
    d[6] = d[6] & 0x0F | 0x80
    d[8] = d[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(d)))

vectors = []
for node, iteration, label, ordinal, number in [
    ("charge", [], "charge", None, 0), ("charge", [], "charge", None, 1), ("charge", [], None, 0, 0),
    ("decide/call", [], None, 1, 0), ("each/send", [0, 7], "mail", None, 0), ("each/send", [0, 4294967295], "", None, 3),
    ("grüße", [], "schlüssel", None, 0)]:
    vectors.append({"node": node, "iteration": iteration, "label": label, "ordinal": ordinal, "dispatch_number": number,
                    "id": receipt_id(1, 2, 0, node, iteration, label, ordinal, number)})
print(json.dumps(vectors, indent=1, ensure_ascii=False))
