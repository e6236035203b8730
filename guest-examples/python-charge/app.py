from counterfoil import Failure, block, http

DESCRIPTOR = {
    "name": "python-charge",
    "summary": "Charges a card once, in Python.",
    "input": {
        "type": "object",
        "properties": {"order": {"type": "string"}, "cents": {"type": "integer", "minimum": 0}},
        "required": ["order", "cents"],
    },
    "output": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
    "effects": [{"kind": "http", "safety": "at-most-once", "connections": ["payments"]}],
}


def charge(order):
    if not isinstance(order["cents"], int):
        raise Failure("bad_amount", f"{order['cents']} is no amount")
    body = {"order": order["order"], "cents": order["cents"]}
    return {"id": http.post("/charges", connection="payments", key="charge", json=body).json()["id"]}


Step = block(DESCRIPTOR, charge)
