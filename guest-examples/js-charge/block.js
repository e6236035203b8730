import { block, http, Failure } from "../../sdk/js/counterfoil.js";

const descriptor = {
  name: "js-charge",
  summary: "Charges a card once, in JavaScript.",
  input: {
    type: "object",
    properties: { order: { type: "string" }, cents: { type: "integer", minimum: 0 } },
    required: ["order", "cents"],
  },
  output: { type: "object", properties: { id: { type: "string" } }, required: ["id"] },
  effects: [{ kind: "http", safety: "at-most-once", connections: ["payments"] }],
};

export const step = block(descriptor, ({ order, cents }) => {
  if (!Number.isInteger(cents)) throw Failure.permanent("bad_amount", `${cents} is no amount`);
  const charge = http.post("/charges", { connection: "payments", key: "charge", json: { order, cents } });
  return { id: charge.json().id };
});
