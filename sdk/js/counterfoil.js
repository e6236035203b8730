// Write a Counterfoil block in JavaScript.
//
//     import { block, http } from "./counterfoil.js";
//
//     export const step = block({ name: "charge-card", effects: [...] }, (order) =>
//       http.post("/charges", { connection: "payments", key: "charge", json: order }).json());
//
// The descriptor is that of `docs/block-author.md`. A block is synchronous: every effect answers before it returns. One that
// uses `fetch` is an `asyncBlock`, and needs nothing else of this file.

import * as effects from "counterfoil:block/effects@0.1.0";
import * as host from "counterfoil:block/context@0.1.0";

/** A failure of the block itself. `transient` waits for another attempt; anything else that is thrown is permanent. */
export class Failure extends Error {
  constructor(code, message, { transient = false, retryAfterMs = null } = {}) {
    super(message);
    Object.assign(this, { code, transient, retryAfterMs });
  }

  static permanent(code, message) {
    return new Failure(code, message);
  }

  static transient(code, message, retryAfterMs = null) {
    return new Failure(code, message, { transient: true, retryAfterMs });
  }
}

/** An effect that is known not to have taken place. `kind` is the contract's: denied, not-sent, rejected, no-answer,
 * response-too-large or limit. An answer that refuses is in `answer`. */
export class EffectError extends Failure {
  constructor({ tag, val }) {
    const answer = typeof val === "object" ? new Answer(val) : null;
    const again = ["not-sent", "no-answer"].includes(tag) || (tag === "rejected" && [425, 429, 503].includes(val.status));
    super(tag.replaceAll("-", "_"), answer ? `the receiver answered ${answer.status}` : val, { transient: again });
    Object.assign(this, { kind: tag, answer });
  }
}

/** An HTTP answer. */
export class Answer {
  constructor({ status, headers, body, truncated }) {
    Object.assign(this, { status, headers, body: Uint8Array.from(body), truncated });
  }

  header(name) {
    const wanted = name.toLowerCase();
    return this.headers.find(([given]) => given.toLowerCase() === wanted)?.[1];
  }

  text() {
    return fromUtf8(this.body);
  }

  json() {
    return JSON.parse(this.text());
  }
}

function perform(request, options = {}) {
  try {
    return effects.perform({
      request,
      key: options.key ?? null,
      connection: options.connection ?? null,
      safety: options.safety ?? null,
      idempotencyKey: options.idempotencyKey ?? null,
      timeoutMs: options.timeoutMs ?? null,
      extra: options.extra ?? [],
    }).val;
  } catch (thrown) {
    // The failure that the contract knows is carried by an error of the runtime; anything else is a fault of the program.
    throw typeof thrown?.payload?.tag === "string" ? new EffectError(thrown.payload) : thrown;
  }
}

function request(method, url, options = {}) {
  const headers = Object.entries(options.headers ?? {});
  let body = options.body ?? new Uint8Array();
  if (options.json !== undefined) {
    body = JSON.stringify(options.json);
    headers.push(["content-type", "application/json"]);
  }
  if (typeof body === "string") body = toUtf8(body);
  return new Answer(perform({ tag: "http", val: { method, url, headers, body } }, options));
}

/** Calls of other systems. Options: `connection`, `key`, `safety`, `idempotencyKey`, `timeoutMs`, `headers`, and `json` or
 * `body`. */
export const http = {
  request,
  get: (url, options) => request("GET", url, options),
  post: (url, options) => request("POST", url, options),
  put: (url, options) => request("PUT", url, options),
  patch: (url, options) => request("PATCH", url, options),
  delete: (url, options) => request("DELETE", url, options),
};

/** An event for the tenant's own outbox. */
export function emit(eventType, data, { recordId = null, key } = {}) {
  perform({ tag: "emit", val: { eventType, recordId, data: JSON.stringify(data) } }, { key });
}

/** What a worker outside the host came to: the step waits for it, and then the block is run again. Options: `key`, `safety`,
 * `idempotencyKey`, `timeoutMs`, and `claimWithinMs`, the time that it may lie in its queue. */
export function worker(queue, input, { claimWithinMs = null, ...options } = {}) {
  const extra = claimWithinMs === null ? [] : [["claim-within-ms", String(claimWithinMs)]];
  const task = { queue, input: JSON.stringify(input ?? null) };
  return JSON.parse(perform({ tag: "worker", val: task }, { ...options, extra }));
}

/** The tenant's own values, as JSON. */
export const storage = {
  get(name) {
    const value = perform({ tag: "storage", val: { tag: "get", val: name } });
    return value == null ? undefined : JSON.parse(fromUtf8(value));
  },
  put(name, value) {
    perform({ tag: "storage", val: { tag: "put", val: [name, toUtf8(JSON.stringify(value))] } });
  },
  delete(name) {
    perform({ tag: "storage", val: { tag: "delete", val: name } });
  },
};

/** What a block may know: the same on every re-run. Take time and randomness from here. */
export const context = {
  place: () => host.place(),
  startedAt: () => new Date(Number(host.startedAt())),
  random: (bytes) => Uint8Array.from(host.random(bytes)),
  log: (level, message) => host.log(level, String(message)),
};

/** The exported `step` of a block that answers `run(input)`. */
export function block(descriptor, run) {
  return {
    describe: () => described(descriptor),
    run(input) {
      try {
        return written(run(JSON.parse(input)));
      } catch (error) {
        throw failure(error);
      }
    },
  };
}

/** The same of a block whose `run` waits, for `fetch` say, on a runtime that has it. */
export function asyncBlock(descriptor, run) {
  return {
    describe: () => described(descriptor),
    async run(input) {
      try {
        return written(await run(JSON.parse(input)));
      } catch (error) {
        throw failure(error);
      }
    },
  };
}

const described = (descriptor) => JSON.stringify({ input: true, output: true, ...descriptor });

const written = (output) => JSON.stringify(output ?? null);

function failure(error) {
  const code = error instanceof Failure ? error.code : "exception";
  const message = String(error?.message ?? error);
  if (!(error instanceof Failure)) host.log("error", `${message}\n${error?.stack ?? ""}`);
  return error?.transient
    ? { tag: "transient", val: [{ code, message }, error.retryAfterMs] }
    : { tag: "permanent", val: { code, message } };
}

function toUtf8(text) {
  return Uint8Array.from(unescape(encodeURIComponent(text)), (char) => char.charCodeAt(0));
}

function fromUtf8(bytes) {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return decodeURIComponent(escape(text));
}
