// Numbers as people read them.

const MINUS = "\u2212";

// A size with as many digits as tell half of a scale from the whole, and at least two decimals.
function sized(size, scale) {
  if (scale > 0 && scale < 1e-4) return general(size, 2);
  return size.toFixed(scale > 0 ? Math.max(2, 1 - Math.floor(Math.log10(scale))) : 2);
}

function signed(value, scale) {
  if (!Number.isFinite(value)) return value > 0 ? "+\u221e" : value < 0 ? `${MINUS}\u221e` : "unknown";
  const text = sized(Math.abs(value), scale);
  if (Number(text) === 0) return text;
  return (value < 0 ? MINUS : "+") + text;
}

// A probability in percent, with as many digits as tell it from 0 and from 1: as in Python.
function percent(share) {
  if (!Number.isFinite(share)) return "unknown";
  const fromEnd = Math.min(share, 1 - share);
  const digits = fromEnd > 0 && fromEnd < 1 ? -Math.floor(Math.log10(100 * fromEnd)) : 1;
  return `${(100 * share).toFixed(Math.min(6, Math.max(1, digits)))}%`;
}

// A number to some digits, as Python's format "g" has it: 0.3, 263, 2.6e+05.
function general(value, digits) {
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "unknown" : value < 0 ? "-inf" : "inf";
  const [mantissa, power] = value.toExponential(digits - 1).split("e");
  const exponent = Number(power);
  const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (exponent >= -4 && exponent < digits) return trimmed(value.toFixed(digits - 1 - exponent));
  const sign = exponent < 0 ? "-" : "+";
  return `${trimmed(mantissa)}e${sign}${String(Math.abs(exponent)).padStart(2, "0")}`;
}

// A number with its sign, zero without one; bits below 1 to a hundredth: as in Python.
function signedWords(value, unit) {
  const size = Math.abs(value);
  if (unit === "bits" && size < 0.005) return "0.00";
  if (value === 0) return "0";
  if (unit === "bits" && size < 0.995) return (value < 0 ? "" : "+") + value.toFixed(2);
  if (size >= (unit === "bits" ? 0.995 : 1) && Number.isFinite(value)) return (value < 0 ? "" : "+") + value.toFixed(1);
  return (value < 0 ? "" : "+") + general(value, 2);
}

// Words with arrows and minus signs, as they are printed.
function typeset(words) {
  return words.replaceAll("->", "\u2192").replace(/(?<![\w-])-(?=[\di])/g, MINUS);
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
