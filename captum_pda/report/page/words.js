// What a region says, in words that are true of the measure.

const ROWS = ["upper", "middle", "lower"];
const COLUMNS = ["left", "middle", "right"];
const HARDLY = 0.05; // bits: odds that differ by less than 4 percent

function placeWords(box, { height, width }) {
  const { y, x } = middle(box);
  const row = Math.min(Math.floor((3 * y) / height), 2);
  const column = Math.min(Math.floor((3 * x) / width), 2);
  return row === 1 && column === 1 ? "centre" : `${ROWS[row]} ${COLUMNS[column]}`;
}

function sizeWords(group) {
  const [height, width] = group.size;
  const sides = `${height}\u00d7${width}`;
  if (group.depth !== "input") return `features of ${group.depth}, ${sides}`;
  return group.owner ? `regions of the mask, about ${sides}` : sides;
}

const CONTEXT_WORDS = {
  full: "All else seen",
  empty: "Seen by itself",
  both: "Both, averaged",
};

// How a region is begun to be told of, in each context.
function opening(contexts) {
  if (contexts.length > 1) return "On average over both contexts, seeing it";
  return contexts[0] === "full" ? "Seeing it" : "By itself, it";
}

function evidenceSentence(view, told) {
  const { measure } = view;
  const name = isolated(view.className);
  const other = view.otherName === null ? null : isolated(view.otherName);
  const start = opening(told.contexts);
  const { value } = told;
  if (!Number.isFinite(value)) return "What this region says is not known.";
  if (measure.unit === "bits") {
    const what = ratioOf(measure, name, other);
    if (Math.abs(value) < HARDLY) return `${start} hardly changes ${what}.`;
    const times = short(2 ** Math.abs(value));
    if (value < 0) return `${start} divides ${what} by ${times}.`;
    return `${start} makes ${what} ${times} times as high.`;
  }
  if (measure.name === "probability_difference") {
    const points = (100 * Math.abs(value)).toFixed(1);
    const what = other === null ? `the probability of ${name}` : `the lead of ${name} over ${other}`;
    if (value < 0) return `${start} takes ${points} points from ${what}.`;
    return `${start} adds ${points} points to ${what}.`;
  }
  const what = other === null ? name : `the lead of ${name} over ${other}`;
  return `${start} ${value < 0 ? "lowers" : "raises"} ${what} by ${short(Math.abs(value))}.`;
}

// Bits are a ratio: of the odds, of two classes, or of the probability itself.
function ratioOf(measure, name, other) {
  if (other !== null) return `the ratio of ${name} to ${other}`;
  return measure.name === "weight_of_evidence" ? `the odds of ${name}` : `the probability of ${name}`;
}

function predictionWords(value, measure) {
  return measure.probabilities ? percent(value) : short(value);
}

function valueWords(value, error) {
  return `${signed(value)}${error === null ? "" : ` \u00b1 ${error.toFixed(2)}`}`;
}

function bitsWords(value, error, measure) {
  return `${valueWords(value, error)} ${measure.unit}`;
}

// A region in one line, as a screen reader says it.
function spokenWords(view, found) {
  const told = view.describe(found);
  const where = placeWords(told.box, view.photo);
  const full = told.parts.find((part) => part.context === "full") || told.parts[0];
  const seen = predictionWords(full.first.seen, view.measure);
  const not = predictionWords(full.first.not, view.measure);
  return (
    `${where}, ${sizeWords(told.group)}: ${bitsWords(told.value, told.error, view.measure)}. ` +
    `${evidenceSentence(view, told)} ${isolated(view.className)}: ${seen} with it, ${not} without it.`
  );
}
