// Numbers as people read them.

const MINUS = "\u2212";

function signed(value, digits = 2) {
  if (!Number.isFinite(value)) return value > 0 ? "+\u221e" : value < 0 ? `${MINUS}\u221e` : "unknown";
  const text = Math.abs(value).toFixed(digits);
  if (Number(text) === 0) return text;
  return (value < 0 ? MINUS : "+") + text;
}

function percent(share) {
  if (!Number.isFinite(share)) return "unknown";
  const value = 100 * share;
  if (value > 0 && value < 0.05) return "under 0.1%";
  if (value < 100 && value > 99.95) return "over 99.9%";
  return `${value.toFixed(1)}%`;
}

// Three digits that matter: 2.63, 26.3, 263, 2.6e+5.
function short(value) {
  if (!Number.isFinite(value)) return String(value);
  return value >= 1e5 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

// "1 photo", "12 photos".
function counted(number, one) {
  return `${number} ${one}${number === 1 ? "" : "s"}`;
}

// Text of any direction, kept apart from the words around it.
function isolated(name) {
  return `\u2068${name}\u2069`;
}
