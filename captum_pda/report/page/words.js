// What a region says, in the words of the Python side: each number with its question.

const ROWS = ["upper", "middle", "lower"];
const COLUMNS = ["left", "middle", "right"];
const HARDLY = 0.05; // bits: odds that differ by less than 4 percent

function placeWords(box, { height, width }) {
  const { y, x } = middle(box);
  const row = Math.min(Math.floor((3 * y) / height), 2);
  const column = Math.min(Math.floor((3 * x) / width), 2);
  return row === 1 && column === 1 ? "centre" : `${ROWS[row]} ${COLUMNS[column]}`;
}

const CONTEXT_WORDS = {
  full: "Without each region",
  empty: "Each by itself",
  both: "All questions",
};

function predictionWords(value, measure) {
  return measure.probabilities ? percent(value) : general(value, 4);
}

function withUnit(words, { unit }) {
  return unit ? `${words} ${unit}` : words;
}

// The answer to one question about a region, as StrongRegion.answers has it.
function answerWords({ context, value, first }, measure) {
  if (context === "empty") return [`by itself: ${withUnit(signedWords(value), measure)} over nothing`];
  const [seen, unseen] = first.map((one) => predictionWords(one, measure));
  return [`without it: ${seen} -> ${unseen} (${withUnit(signedWords(-value), measure)})`];
}

// The same, with what a close look adds: the sampling error, and the other class.
function closeWords(view, told) {
  const { measure } = view;
  return told.parts.flatMap((part) => {
    if (!Number.isFinite(part.value)) return [];
    const question = part.context === "full" ? "without it" : "by itself";
    const words = answerWords(part, measure);
    if (part.second && part.context === "full") {
      const [seen, unseen] = part.second.map((one) => predictionWords(one, measure));
      words.push(`without it, ${isolated(view.otherName)}: ${seen} -> ${unseen}`);
    }
    if (part.error !== null) {
      words.push(`${question}, standard error: ${withUnit(general(part.error, 2), measure)}`);
    }
    return words;
  });
}

// What the first of its answers means for the odds, or for another measure.
function evidenceSentence(view, told) {
  const { measure } = view;
  const name = isolated(view.className);
  const other = view.otherName === null ? null : isolated(view.otherName);
  const [part] = told.parts;
  if (!part || !Number.isFinite(part.value)) return "What this region says is not known.";
  const { value } = part;
  const start = part.context === "full" ? "Seeing it" : "By itself, it";
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

// What the colours mean, in one line.
function scaleWords(view) {
  const { questions } = view.methods[view.choice.method];
  const asked = new Map();
  for (const group of view.groups) {
    for (const part of group.parts.filter((one) => view.contexts.includes(one.context))) {
      const key = `${part.context} ${group.depth}`;
      asked.set(key, (asked.get(key) || 0) + 1);
    }
  }
  const each = [...asked].map(([key, sizes]) =>
    sizes > 1 ? `${questions[key]} (mean of ${sizes} sizes)` : questions[key],
  );
  const unit = view.measure.unit || "units of the output";
  if (each.length === 1) return `${unit}; ${each[0]}`;
  return `${unit}; weighted mean of all questions: ${each.join("; ")}`;
}

// A region in one line, as a screen reader says it.
function spokenWords(view, found) {
  const told = view.describe(found);
  const answers = closeWords(view, told).join("; ");
  return `${placeWords(told.box, view.photo)}, ${told.group.title}: ${answers}. ${evidenceSentence(view, told)}`;
}
