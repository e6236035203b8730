import { asyncBlock, Failure } from "../../sdk/js/counterfoil.js";

const descriptor = {
  name: "fetch-charge",
  summary: "Charges a card once, by fetch.",
  input: {
    type: "object",
    properties: { order: { type: "string" }, cents: { type: "integer", minimum: 0 } },
    required: ["order", "cents"],
  },
  output: { type: "object", properties: { id: { type: "string" } }, required: ["id"] },
  effects: [{ kind: "http", safety: "at-most-once", connections: ["payments"] }],
};

export const step = asyncBlock(descriptor, async ({ order, cents }) => {
  if (!Number.isInteger(cents)) throw Failure.permanent("bad_amount", `${cents} is no amount`);
  const answer = await fetch("https://payments/charges", {
    method: "POST",
    headers: { "content-type": "application/json", "counterfoil-connection": "payments", "counterfoil-key": "charge" },
    body: JSON.stringify({ order, cents }),
  });
  if (!answer.ok) {
    const again = answer.status === 429 || answer.status === 503;
    throw new Failure("rejected", `the receiver answered ${answer.status}`, { transient: again });
  }
  const charge = await answer.json();
  return { id: charge.id };
});
