// How figures and states are said. A state has a word and a mark, so that its colour is never alone.

const STATES = {
  "in zone": ["near", "●"],
  "falling back": ["far", "▲"],
  hinted: ["near", "◐"],
  unhinted: ["none", "○"],
  empty: ["none", "✕"],
  "not routed": ["none", "–"],
  unknown: ["none", "?"],
};

export const classOfState = (state) => (STATES[state] ?? ["none"])[0];
export const markOfState = (state) => (STATES[state] ?? ["none", "?"])[1];

/** A share as a percentage; what is not all or nothing is never shown as 0 or 100. */
export function percent(share) {
  const rounded = Math.round(100 * share);
  if (rounded === 100 && share < 0.9995) return "99 %";
  if (rounded === 0 && share > 0) return "<1 %";
  return `${rounded} %`;
}

export const times = (ratio) => `${ratio.toFixed(2)}x`;

export const nameOfZone = (zone) => zone || "no zone";

export function count(number, singular, plural = `${singular}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? singular : plural}`;
}

export function bytes(perSecond) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (perSecond >= 1000 && unit < units.length - 1) {
    perSecond /= 1000;
    unit += 1;
  }
  return `${perSecond < 10 && unit ? perSecond.toFixed(1) : Math.round(perSecond)} ${units[unit]}/s`;
}

export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}
