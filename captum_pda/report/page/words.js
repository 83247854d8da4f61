// What a region says, in the words of the Python side: each number with its question.

const ROWS = ["upper", "middle", "lower"];
const COLUMNS = ["left", "middle", "right"];

function placeWords(box, { height, width }) {
  const { y, x } = middle(box);
  const row = Math.min(Math.floor((3 * y) / height), 2);
  const column = Math.min(Math.floor((3 * x) / width), 2);
  return row === 1 && column === 1 ? "centre" : `${ROWS[row]} ${COLUMNS[column]}`;
}

// Words of Python with places to fill in: "{start} divides {what} by {size}."
function filled(template, parts) {
  return template.replace(/\{(\w+)\}/g, (_, name) => parts[name]);
}

function withUnit(words, { unit }) {
  return unit ? `${words} ${unit}` : words;
}

// The answer to one question about a region, as StrongRegion.answers has it.
function answerWords({ context, value, first, second }, { measure, words }) {
  const [seen, changed] = [0, 1].map((place) =>
    (second ? [first, second] : [first]).map((one) => predictionWords(one[place], measure)).join(" : "),
  );
  const [added, change] = [value, -value].map((one) => withUnit(signedWords(one, measure.unit), measure));
  return filled(words.contexts[context].answer, { seen, changed, value: added, change });
}

// The same, with what a close look adds: the sampling error.
function closeWords(view, told) {
  const { measure } = view;
  return told.parts.flatMap((part) => {
    if (!Number.isFinite(part.value)) return [];
    const { question } = view.header.words.contexts[part.context];
    const words = [answerWords(part, view.header)];
    if (part.error !== null) {
      words.push(`${question}, standard error: ${withUnit(general(part.error, 2), measure)}`);
    }
    return words;
  });
}

// What the first of its answers means for the odds, or for another measure.
function evidenceSentence(view, told) {
  const { contexts, effect } = view.header.words;
  const [part] = told.parts;
  if (!part || !Number.isFinite(part.value)) return "What this region says is not known.";
  const size = Math.abs(part.value);
  const sizes = { ratio: () => short(2 ** size), points: () => (100 * size).toFixed(1), plain: () => short(size) };
  const names = { name: isolated(view.className), other: view.otherName && isolated(view.otherName) };
  const kind = size <= effect.hardly ? "little" : part.value < 0 ? "less" : "more";
  return filled(effect[kind], {
    start: contexts[part.context].effect,
    what: filled(view.otherName === null ? effect.what : effect.pair, names),
    size: sizes[effect.kind](),
  });
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
  return each.length === 1 ? each[0] : `${view.header.words.mean}: ${each.join("; ")}`;
}

// A region in one line, as a screen reader says it.
function spokenWords(view, found) {
  const told = view.describe(found);
  const answers = closeWords(view, told).join("; ");
  return `${placeWords(told.box, view.photo)}, ${told.group.title}: ${answers}. ${evidenceSentence(view, told)}`;
}
