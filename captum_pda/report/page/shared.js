// What the pages of photos and of other inputs have in common.

const TICKS = [-1, -0.5, 0, 0.5, 1]; // shares of the scale

function predictionWords(value, measure) {
  return measure.probabilities ? percent(value) : general(value, 4);
}

// What the model says, whether it is right, and how the evidence was made.
function showHeader({ title, labels, predictions, measure, truth, settings }) {
  document.title = `${title}: ${labels[0]}`;
  byId("title").textContent = title;
  byId("verdict").replaceChildren(
    nameElement(labels[0]),
    element("span", { class: "share" }, predictionWords(predictions[0], measure)),
  );
  if (truth === 0) byId("truth").textContent = "\u2713 right";
  else if (truth !== null) byId("truth").replaceChildren("\u2717 wrong, it is ", nameElement(labels[truth]));
  byId("settings").replaceChildren(
    ...settings.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, nameElement(text))]),
  );
}

// The classes with their probabilities, as a list to choose from.
function showClasses({ labels, predictions, measure }, chosen, choose) {
  byId("classes").replaceChildren(
    ...labels.map((name, place) => {
      const bar = element("span", { class: "bar" });
      if (measure.probabilities) bar.style.setProperty("--share", String(predictions[place]));
      return element(
        "label",
        { class: "class" },
        element("input", {
          type: "radio",
          name: "class",
          value: String(place),
          checked: place === chosen,
          onchange: () => choose(place),
        }),
        bar,
        nameElement(name),
        element("span", { class: "number" }, predictionWords(predictions[place], measure)),
      );
    }),
  );
}

// The colour bar, what it measures, and all the evidence that there is.
function showScale({ scale, hidden, words, total }, { colours, measure }) {
  byId("ramp").style.background = scaleGradient(hidden, colours);
  byId("ticks").replaceChildren(...TICKS.map((share) => element("span", {}, signed(share * scale, scale))));
  byId("scale-label").textContent = measure.label;
  byId("scale-words").textContent = words;
  byId("total").hidden = !total;
  byId("total").textContent = typeset(total || "");
}

// One list of the strongest regions for a class, perhaps rather than for another.
function showList(kind, name, other, found, row) {
  const rather = other === null ? [] : [" rather than ", nameElement(other)];
  byId(`${kind}-title`).replaceChildren(`Speaks ${kind} `, nameElement(name), ...rather);
  byId(`${kind}-none`).hidden = found.length > 0;
  byId(`${kind}-rows`).replaceChildren(...found.map(row));
}

function regionRow(kind, place, answers, where, look) {
  const words = [where, ...answers].filter(Boolean).join("; ");
  return element(
    "li",
    { onclick: look },
    element(
      "button",
      {
        type: "button",
        class: `chip ${kind}`,
        "aria-label": `Look at number ${place + 1} ${kind}: ${words}`,
        onclick: look,
      },
      `${kind === "for" ? "+" : MINUS}${place + 1}`,
    ),
    element(
      "div",
      {},
      ...answers.map((answer) => element("p", { class: "answer" }, typeset(answer))),
      ...(where ? [element("p", { class: "where" }, where)] : []),
    ),
  );
}

// The sentence of a map's test; a failed one stands out.
function showSentence(test, isShown, what) {
  const isMade = Boolean(test) && test.failure === null;
  byId("tested").hidden = !test || (isMade && !isShown);
  for (const id of ["tested", "test"]) byId(id).classList.toggle("failed", isMade && !test.passed);
  if (!test) return;
  byId("tested").textContent = isMade
    ? typeset(`${test.passed ? `Tested on this ${what}` : "Test failed"}: ${test.sentence}`)
    : test.failure;
}

// The slider and the curves of a test at one of the shares that were tested.
function showCurves(test, step, { probabilities }) {
  const [share, hidden, shown] = ["share", "hidden", "shown"].map((name) => test.words[name][step]);
  byId("share").max = String(test.shares.length - 1);
  byId("share").value = String(step);
  byId("share").setAttribute("aria-valuetext", share);
  byId("share-value").textContent = share;
  byId("test-gain").textContent = `Area between the curves (symmetric relevance gain): ${test.gain}; a random map has 0.`;
  byId("curves").replaceChildren(...testCurves(test, step, probabilities));
  byId("curves").setAttribute(
    "aria-label",
    `The prediction against the share of pixels; at ${share}: ${hidden} with the strongest hidden, ` +
      `${shown} with only them shown`,
  );
}

// Adds the border of some of the pixels of a box to a path.
function addBorder(path, isOwn, { top, left, height, width }, [across, down]) {
  const edge = (fromX, fromY, toX, toY) => {
    path.moveTo(fromX * across, fromY * down);
    path.lineTo(toX * across, toY * down);
  };
  const own = (y, x) => y >= top && x >= left && y < top + height && x < left + width && isOwn(y, x);
  for (let y = top; y < top + height; y += 1) {
    for (let x = left; x < left + width; x += 1) {
      if (!own(y, x)) continue;
      if (!own(y - 1, x)) edge(x, y, x + 1, y);
      if (!own(y + 1, x)) edge(x, y + 1, x + 1, y + 1);
      if (!own(y, x - 1)) edge(x, y, x, y + 1);
      if (!own(y, x + 1)) edge(x + 1, y, x + 1, y + 1);
    }
  }
}

// A line with a white rim, so that it is seen on anything.
function outline(context, path, width, colour) {
  context.lineJoin = "round";
  context.lineCap = "round";
  for (const [wide, style] of [[2 * width, "rgb(255 255 255 / 0.9)"], [width, colour]]) {
    context.lineWidth = wide;
    context.strokeStyle = style;
    context.stroke(path);
  }
}
