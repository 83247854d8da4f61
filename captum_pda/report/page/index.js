// Many photos: sort, filter, and open the report of each.

const ORDERS = {
  title: (a, b) => a.title.localeCompare(b.title, undefined, { numeric: true }),
  sure: (a, b) => b.prediction - a.prediction,
  unsure: (a, b) => a.prediction - b.prediction,
  against: (a, b) => (a.against?.value ?? 0) - (b.against?.value ?? 0),
  for: (a, b) => (b.for?.value ?? 0) - (a.for?.value ?? 0),
};

function card(entry, number) {
  const shown = entry.probabilities ? percent(entry.prediction) : general(entry.prediction, 4);
  const evidence = ["for", "against"].map((kind) =>
    element("span", { class: kind }, `${kind}: ${entry[kind] === null ? "nothing" : typeset(entry[kind].words).replace(": ", " ")}`),
  );
  const words = [
    element("span", { class: "verdict" }, nameElement(entry.verdict), element("span", { class: "number" }, shown)),
    element("span", { class: "evidence", title: "the strongest regions" }, ...evidence),
    element("span", { class: "file", dir: "auto", title: entry.title }, entry.title),
  ];
  if (entry.test) {
    const kind = entry.test.passed ? "tested" : "tested failed";
    words.splice(2, 0, element("span", { class: kind }, `map’s test: ${typeset(entry.test.sentence)}`));
  }
  if (entry.truth !== null) {
    const right = entry.right ? "\u2713 right" : "\u2717 wrong, it is ";
    const truth = entry.right ? [right] : [right, nameElement(entry.truth)];
    words.splice(1, 0, element("span", { class: "truth" }, ...truth));
  }
  const image = element("img", { alt: "", width: 160, height: 160 });
  const link = element("a", { href: entry.href }, image, element("span", { class: "words" }, ...words));
  const made = element("li", {}, link);
  made.image = image;
  made.number = number;
  return made;
}

// Small pictures are decoded when they come near.
function watch(cards, entries, arrays) {
  const near = new IntersectionObserver(
    (found) => {
      for (const { isIntersecting, target } of found) {
        if (!isIntersecting) continue;
        const bytes = arrays[entries[target.number].thumbnail];
        target.image.src = URL.createObjectURL(new Blob([bytes], { type: "image/jpeg" }));
        near.unobserve(target);
      }
    },
    { rootMargin: "600px" },
  );
  cards.forEach((one) => near.observe(one));
}

function wanted(entry) {
  const [low, high] = byId("probability").value.split(" ").map(Number);
  const search = byId("search").value.trim().toLowerCase();
  const right = byId("right").value;
  const text = `${entry.title}\n${entry.verdict}\n${entry.truth ?? ""}`.toLowerCase();
  return (
    (!byId("verdict").value || entry.verdict === byId("verdict").value.slice(1)) &&
    (!right || (entry.truth !== null && entry.right === (right === "right"))) &&
    (!entry.probabilities || (entry.prediction >= low && (entry.prediction < high || high === 1))) &&
    text.includes(search)
  );
}

async function start() {
  const { header, arrays } = await readBlock("values");
  const { entries } = header;
  document.title = header.title;
  byId("title").textContent = header.title;
  const cards = entries.map(card);
  const counts = new Map();
  for (const { verdict } of entries) counts.set(verdict, (counts.get(verdict) || 0) + 1);
  const names = [...counts].sort(([a, m], [b, n]) => n - m || a.localeCompare(b));
  byId("verdict").replaceChildren(
    element("option", { value: "" }, "all classes"),
    // A letter before the name, so that a class without one differs from "all".
    ...names.map(([name, count]) => element("option", { value: `=${name}` }, `${name} (${count})`)),
  );
  byId("right-field").hidden = entries.every(({ truth }) => truth === null);
  const show = () => {
    const order = ORDERS[byId("sort").value];
    const chosen = cards.filter(({ number }) => wanted(entries[number]));
    chosen.sort((a, b) => order(entries[a.number], entries[b.number]) || a.number - b.number);
    byId("photos").replaceChildren(...chosen);
    const all = counted(entries.length, "photo");
    byId("count").textContent = chosen.length === entries.length ? all : `${chosen.length} of ${all}`;
  };
  const { failed = [] } = header;
  byId("failures").hidden = failed.length === 0;
  byId("failures").querySelector("summary").textContent = `${counted(failed.length, "photo")} could not be explained`;
  byId("failures").querySelector("ul").replaceChildren(
    ...failed.map(([name, why]) => element("li", { dir: "auto" }, why.includes(name) ? why : `${name}: ${why}`)),
  );
  byId("choices").addEventListener("input", show);
  byId("choices").addEventListener("submit", (event) => event.preventDefault());
  show();
  watch(cards, entries, arrays);
}

run(start);
