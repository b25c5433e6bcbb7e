// The workload of "waymark bench": a turn has four boundaries of so many bytes, of words of which few are frequent.

export const sizes = { started: 300, called: 300, returned: 4096, ended: 2048 };
export const turnBoundaries = 4;
export const turnPayload = sizes.started + sizes.called + sizes.returned + sizes.ended;

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
export function textOf(seed) {
  const random = generator(seed + 7);
  return (length) => {
    let text = "";
    while (text.length < length) text += words[Math.floor(words.length ** random()) - 1] + " ";
    return text.slice(0, length);
  };
}

// quantile of numbers; undefined for none.
export function quantile(numbers, q) {
  const sorted = [...numbers].sort((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(q * sorted.length) - 1)];
}
