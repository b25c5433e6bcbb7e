// The workload of tools/bench: a turn has three boundaries, the model's answer with two calls and the result of each,
// of words of which few are frequent.

const sizes = { answer: 2048, call: 300, result: 4096 };
const turnCalls = 2;
export const turnBoundaries = 1 + turnCalls;
export const turnPayload = sizes.answer + turnCalls * (sizes.call + sizes.result);

// generator returns numbers from 0 to 1, the same for the same seed.
function generator(seed) {
  let state = seed >>> 0 || 1;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
}

const words = (() => {
  const random = generator(1);
  const pick = (letters) => letters[Math.floor(random() * letters.length)];
  return Array.from({ length: 8192 }, () => {
    let word = "";
    for (let syllables = 1 + Math.floor(random() * 4); syllables > 0; syllables--) {
      word += pick("bcdfghjklmnprstvwz") + pick("aeiou") + (random() < 1 / 3 ? pick("lmnrst") : "");
    }
    return word;
  });
})();

// textOf returns a function that makes texts of a length; how often a word comes is about the inverse of its rank.
function textOf(seed) {
  const random = generator(seed + 7);
  return (length) => {
    let text = "";
    while (text.length < length) text += words[Math.floor(words.length ** random()) - 1] + " ";
    return text.slice(0, length);
  };
}

// turnsOf makes what is said in the turns of a run, before the measurement: an answer and the results of its calls.
export function turnsOf(id, turns) {
  let seed = 0;
  for (const letter of id) seed = (seed * 31 + letter.charCodeAt(0)) >>> 0;
  const text = textOf(seed);
  return Array.from({ length: turns }, (_, turn) => ({
    answer: {
      text: text(sizes.answer),
      calls: Array.from({ length: turnCalls }, (_, i) => ({ id: `call-${turn}-${i}`, name: "read", arguments: text(sizes.call) })),
    },
    results: Array.from({ length: turnCalls }, () => text(sizes.result)),
  }));
}

// outputsOf are the boundaries of a turn: each has a name and what is to be durable.
export const outputsOf = ({ answer, results }) => [["answer", answer], ...results.map((result) => ["read", result])];

// Clock keeps the times of boundaries and of turns in ms; each begins where the one before ended.
export class Clock {
  boundaries = [];
  turns = [];
  began = performance.now();
  ended = this.began;
  #boundary = this.began;
  // boundary is told when one is durable; the last of a turn ends the turn.
  boundary() {
    const now = performance.now();
    this.boundaries.push(now - this.#boundary);
    this.#boundary = now;
    if (this.boundaries.length % turnBoundaries === 0) this.#end(now);
  }
  // turn is told when a turn is durable whose boundaries are not seen: each is taken for as long as the others.
  turn() {
    const now = performance.now();
    for (let i = 0; i < turnBoundaries; i++) this.boundaries.push((now - this.ended) / turnBoundaries);
    this.#end(now);
  }
  #end(now) {
    this.turns.push(now - this.ended);
    this.ended = now;
  }
}

// quantile of numbers; undefined for none.
export function quantile(numbers, q) {
  const sorted = [...numbers].sort((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(q * sorted.length) - 1)];
}
