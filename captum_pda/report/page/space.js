// A signal or a volume with its evidence: slices that meet in a place, or lines over a background.

const AXES = ["Slice", "Row", "Column"];
const CHANNEL_HEIGHT = 40; // the least height of a channel of a signal, in pixels

let space = null; // what is looked at

class Space {
  constructor({ header, arrays }) {
    this.header = header;
    this.shape = header.space;
    this.count = this.shape.reduce((product, side) => product * side, 1);
    this.values = arrays[header.values];
    this.maps = arrays[header.maps];
    this.marks = arrays[header.marks];
    this.first = header.first;
    this.opacity = 0.85;
    this.outlined = true;
    const [strong] = this.listed.for.concat(this.listed.against);
    this.place = strong ? [...strong.place] : this.shape.map((side) => Math.floor(side / 2));
  }

  get listed() {
    return this.header.listed[this.first];
  }

  index(place) {
    return place.reduce((sum, at, axis) => sum * this.shape[axis] + at, 0);
  }

  valueAt(index) {
    return this.maps[this.first * this.count + index];
  }

  markAt(index) {
    return this.marks[this.first * this.count + index];
  }
}

// One slice of a volume across an axis, with a slider that moves it.
class Slice {
  constructor(axis, changed) {
    this.axis = axis;
    [this.down, this.across] = [0, 1, 2].filter((other) => other !== axis);
    this.canvas = element("canvas", { tabindex: "0", role: "img" });
    const id = `slice-${axis}`;
    this.slider = element("input", {
      type: "range", id, min: "0", max: String(space.shape[axis] - 1), step: "1",
      oninput: (event) => {
        space.place[axis] = event.target.valueAsNumber;
        changed();
      },
    });
    this.output = element("output", { for: id });
    this.figure = element(
      "figure", { class: "panel" }, this.canvas,
      element("p", { class: "field" }, element("label", { for: id }, AXES[axis]), this.slider, this.output),
    );
    const moved = (event) => {
      if (event.type === "pointermove" && !event.buttons) return;
      const frame = this.canvas.getBoundingClientRect();
      this.move((event.clientY - frame.top) / frame.height, (event.clientX - frame.left) / frame.width);
      changed();
    };
    this.canvas.addEventListener("pointerdown", moved);
    this.canvas.addEventListener("pointermove", moved);
    this.canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowUp: [this.down, -1], ArrowDown: [this.down, 1], ArrowLeft: [this.across, -1], ArrowRight: [this.across, 1], PageUp: [axis, -1], PageDown: [axis, 1] };
      if (!moves[event.key]) return;
      const [along, step] = moves[event.key];
      space.place[along] = clamped(space.place[along] + step, space.shape[along]);
      changed();
      event.preventDefault();
    });
  }

  move(y, x) {
    space.place[this.down] = clamped(Math.floor(y * space.shape[this.down]), space.shape[this.down]);
    space.place[this.across] = clamped(Math.floor(x * space.shape[this.across]), space.shape[this.across]);
  }

  draw() {
    const { shape, place, header } = space;
    const [height, width] = [shape[this.down], shape[this.across]];
    const sides = header.spacing || [1, 1, 1];
    const ratio = (width * sides[this.across]) / (height * sides[this.down]);
    this.canvas.style.aspectRatio = String(ratio);
    const factor = Math.max(1, Math.ceil(480 / Math.max(width, height)));
    this.canvas.width = width * factor;
    this.canvas.height = Math.max(1, Math.round((width * factor) / ratio));
    const context = this.canvas.getContext("2d");
    const small = document.createElement("canvas");
    [small.width, small.height] = [width, height];
    const image = new ImageData(width, height);
    const ends = [fromHex(header.colours.against), fromHex(header.colours.for)];
    const at = [...place];
    const index = (y, x) => {
      at[this.axis] = place[this.axis];
      at[this.down] = y;
      at[this.across] = x;
      return space.index(at);
    };
    for (let y = 0; y < height; y += 1) {
      for (let x = 0; x < width; x += 1) {
        const voxel = index(y, x);
        image.data.set([...this.colour(voxel, ends), 255], 4 * (y * width + x));
      }
    }
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    const [wide, tall] = [this.canvas.width, this.canvas.height];
    context.drawImage(small, 0, 0, wide, tall);
    const [sx, sy] = [wide / width, tall / height];
    if (space.outlined) this.outlines(context, index, height, width, sx, sy);
    for (const style of ["rgb(255 255 255 / 0.6)", "#111"]) {
      context.strokeStyle = style;
      context.lineWidth = style === "#111" ? 1 : 3;
      context.beginPath();
      const [cx, cy] = [(place[this.across] + 0.5) * sx, (place[this.down] + 0.5) * sy];
      context.moveTo(0, cy);
      context.lineTo(wide, cy);
      context.moveTo(cx, 0);
      context.lineTo(cx, tall);
      context.stroke();
    }
    this.slider.value = String(place[this.axis]);
    const number = place[this.axis] * header.step;
    this.output.textContent = `${number} of ${(shape[this.axis] - 1) * header.step}`;
    this.canvas.setAttribute("aria-label", `${AXES[this.axis]} ${number} with its evidence; arrow keys move`);
  }

  // The voxel in grey, under the colour of its evidence.
  colour(voxel, ends) {
    const { channels } = space.header;
    const own = space.values.subarray(channels * voxel, channels * (voxel + 1));
    const rgb = channels === 3 ? own : [own[0], own[0], own[0]];
    const grey = 0.15 * 255 + (0.8 * (rgb[0] + rgb[1] + rgb[2])) / 3;
    const mix = Math.min(1, 2 * space.opacity);
    const value = space.valueAt(voxel);
    const known = !Number.isNaN(value);
    const end = known ? ends[value < 0 ? 0 : 1] : UNKNOWN;
    const strength = space.opacity * (known ? Math.min(Math.abs(value) / space.header.scale, 1) : 1);
    return [0, 1, 2].map((k) => {
      const base = rgb[k] * (1 - mix) + grey * mix;
      return base * (1 - strength) + end[k] * strength;
    });
  }

  outlines(context, index, height, width, sx, sy) {
    const { header } = space;
    const paths = { for: new Path2D(), against: new Path2D() };
    const mark = (y, x) => (y < 0 || x < 0 || y >= height || x >= width ? 0 : space.markAt(index(y, x)));
    for (let y = 0; y < height; y += 1) {
      for (let x = 0; x < width; x += 1) {
        const own = mark(y, x);
        if (!own) continue;
        const path = paths[own > header.n_listed ? "against" : "for"];
        const edge = (fromX, fromY, toX, toY) => {
          path.moveTo(fromX * sx, fromY * sy);
          path.lineTo(toX * sx, toY * sy);
        };
        if (mark(y - 1, x) !== own) edge(x, y, x + 1, y);
        if (mark(y + 1, x) !== own) edge(x, y + 1, x + 1, y + 1);
        if (mark(y, x - 1) !== own) edge(x, y, x, y + 1);
        if (mark(y, x + 1) !== own) edge(x + 1, y, x + 1, y + 1);
      }
    }
    for (const kind of ["for", "against"]) {
      for (const [style, line] of [["rgb(255 255 255 / 0.9)", 5], [header.colours[kind], 2.5]]) {
        context.strokeStyle = style;
        context.lineWidth = line;
        context.stroke(paths[kind]);
      }
    }
  }
}

// A signal: a line for each channel over a background coloured by the evidence.
class Signal {
  constructor(changed) {
    this.canvas = element("canvas", { tabindex: "0", role: "img" });
    const last = space.shape[0] - 1;
    this.slider = element("input", {
      type: "range", id: "sample", min: "0", max: String(last), step: "1",
      oninput: (event) => {
        space.place = [event.target.valueAsNumber];
        changed();
      },
    });
    this.output = element("output", { for: "sample" });
    this.figure = element(
      "figure", { class: "panel" }, this.canvas,
      element("p", { class: "field" }, element("label", { for: "sample" }, "Sample"), this.slider, this.output),
    );
    const moved = (event) => {
      const frame = this.canvas.getBoundingClientRect();
      const share = (event.clientX - frame.left) / frame.width;
      space.place = [clamped(Math.floor(share * space.shape[0]), space.shape[0])];
      changed();
    };
    this.canvas.addEventListener("pointerdown", moved);
    this.canvas.addEventListener("pointermove", moved);
    this.canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      space.place = [clamped(space.place[0] + step, space.shape[0])];
      changed();
      event.preventDefault();
    });
  }

  draw() {
    const { header, shape: [count], place: [here] } = space;
    const row = Math.max(CHANNEL_HEIGHT, 160 / header.channels);
    const [width, height] = [1200, Math.round(2 * row * header.channels)];
    this.canvas.width = width;
    this.canvas.height = height;
    this.canvas.style.aspectRatio = `${width} / ${height}`;
    const context = this.canvas.getContext("2d");
    const x = (sample) => (sample * width) / count;
    context.fillStyle = "#fff";
    context.fillRect(0, 0, width, height);
    for (let sample = 0; sample < count; sample += 1) {
      const value = space.valueAt(sample);
      const colour = colourOf(value / header.scale, header.colours);
      context.globalAlpha = space.opacity;
      context.fillStyle = `rgb(${colour.join(" ")})`;
      context.fillRect(Math.floor(x(sample)), 0, Math.ceil(width / count) + 1, height);
    }
    context.globalAlpha = 1;
    if (space.outlined) this.borders(context, x, height);
    const tall = height / header.channels;
    for (let channel = 0; channel < header.channels; channel += 1) {
      const own = space.values.subarray(channel * count, (channel + 1) * count);
      const [low, high] = own.reduce(([a, b], one) => [Math.min(a, one), Math.max(b, one)], [Infinity, -Infinity]);
      context.strokeStyle = "#1b1c1f";
      context.lineWidth = 2;
      context.beginPath();
      own.forEach((one, sample) => {
        const y = (channel + 0.92 - (0.84 * (one - low)) / (high - low || 1)) * tall;
        if (sample === 0) context.moveTo(x(0.5), y);
        else context.lineTo(x(sample + 0.5), y);
      });
      context.stroke();
    }
    context.strokeStyle = "#111";
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x(here + 0.5), 0);
    context.lineTo(x(here + 0.5), height);
    context.stroke();
    this.slider.value = String(here);
    this.output.textContent = placeWords();
    this.canvas.setAttribute("aria-label", `The signal with its evidence; arrow keys move`);
  }

  borders(context, x, height) {
    const { header, shape: [count] } = space;
    for (let sample = 0; sample <= count; sample += 1) {
      const before = sample > 0 ? space.markAt(sample - 1) : 0;
      const after = sample < count ? space.markAt(sample) : 0;
      if (before === after) continue;
      context.strokeStyle = header.colours[(after || before) > header.n_listed ? "against" : "for"];
      context.lineWidth = 3;
      context.beginPath();
      context.moveTo(x(sample), 0);
      context.lineTo(x(sample), height);
      context.stroke();
    }
  }
}

function clamped(value, size) {
  return Math.min(Math.max(value, 0), size - 1);
}

function placeWords() {
  const { header, place } = space;
  if (place.length === 1) {
    return header.spacing === null ? `sample ${place[0]}` : `time ${general(place[0] * header.spacing[0], 4)}`;
  }
  return place.map((at, axis) => `${AXES[axis].toLowerCase()} ${at * header.step}`).join(", ");
}

function listRows(kind, changed) {
  const { header, listed } = space;
  byId(`${kind}-title`).replaceChildren(`Speaks ${kind} `, nameElement(header.labels[space.first]));
  byId(`${kind}-none`).hidden = listed[kind].length > 0;
  byId(`${kind}-rows`).replaceChildren(
    ...listed[kind].map((region, number) => {
      const look = () => {
        space.place = [...region.place];
        changed();
      };
      const sign = kind === "for" ? "+" : MINUS;
      return element(
        "li", { onclick: look },
        element("button", { type: "button", class: `chip ${kind}`, "aria-label": `Look at number ${number + 1} ${kind}: ${region.answers.join("; ")}`, onclick: look }, `${sign}${number + 1}`),
        element("div", {}, ...region.answers.map((answer) => element("p", { class: "answer" }, typeset(answer)))),
      );
    }),
  );
}

function predicted(value, { probabilities }) {
  return probabilities ? percent(value) : general(value, 4);
}

function classRows(changed) {
  const { header } = space;
  byId("classes").replaceChildren(
    ...header.labels.map((name, place) => {
      const bar = element("span", { class: "bar" });
      if (header.measure.probabilities) bar.style.setProperty("--share", String(header.predictions[place]));
      const choose = () => {
        space.first = place;
        changed();
      };
      return element(
        "label", { class: "class" },
        element("input", { type: "radio", name: "class", value: String(place), checked: place === space.first, onchange: choose }),
        bar, nameElement(name),
        element("span", { class: "number" }, predicted(header.predictions[place], header.measure)),
      );
    }),
  );
}

function showTest(test, step) {
  byId("curves").replaceChildren(...testCurves(test, step, space.header.measure.probabilities));
  const { share, hidden, shown } = test.words;
  const words = `without the strongest ${share[step]}: ${hidden[0]} -> ${hidden[step]}; with only these: ${shown[step]}`;
  byId("share").value = String(step);
  byId("share-value").textContent = share[step];
  byId("test-words").textContent = typeset(words);
  byId("share").setAttribute("aria-valuetext", words);
  byId("curves").setAttribute("aria-label", words);
}

function showClass() {
  const { header } = space;
  const { test } = header;
  const tested = test && test.failure === null && test.place === space.first;
  byId("test").hidden = !tested;
  byId("tested").hidden = !tested && !(test && test.failure);
  if (tested) {
    byId("tested").textContent = typeset(`${test.passed ? "Tested on this input" : "Test failed"}: ${test.sentence}`);
    byId("tested").classList.toggle("failed", !test.passed);
  } else if (test && test.failure) byId("tested").textContent = test.failure;
  const total = header.totals[space.first];
  byId("total").hidden = !total;
  byId("total").textContent = typeset(total || "");
}

async function start() {
  const block = await readBlock("values");
  const { header } = block;
  space = new Space(block);
  const looked = () => {
    panels.forEach((panel) => panel.draw());
    const value = space.valueAt(space.index(space.place));
    const unit = header.measure.unit ? ` ${header.measure.unit}` : "";
    byId("here").textContent = `${placeWords()}: ${signed(value, header.scale)}${unit} on the map`;
  };
  const chosen = () => {
    listRows("for", looked);
    listRows("against", looked);
    showClass();
    looked();
  };
  const panels = space.shape.length === 1 ? [new Signal(looked)] : [0, 1, 2].map((axis) => new Slice(axis, looked));
  byId("panels").className = space.shape.length === 1 ? "signal" : "volume";
  byId("panels").replaceChildren(...panels.map((panel) => panel.figure));
  document.title = `${header.title}: ${header.labels[0]}`;
  byId("title").textContent = header.title;
  byId("verdict").replaceChildren(
    nameElement(header.labels[0]),
    element("span", { class: "share" }, predicted(header.predictions[0], header.measure)),
  );
  if (header.truth !== null) {
    const right = header.truth === 0 ? ["\u2713 right"] : ["\u2717 wrong, it is "];
    if (header.truth !== 0) right.push(nameElement(header.labels[header.truth]));
    byId("truth").replaceChildren(...right);
  }
  byId("ramp").style.background = scaleGradient(0, header.colours);
  byId("ticks").replaceChildren(...[-1, -0.5, 0, 0.5, 1].map((share) => element("span", {}, signed(share * header.scale, header.scale))));
  byId("scale-label").textContent = header.measure.label;
  byId("scale-words").textContent = header.scale_words;
  const every = header.step > 1 ? ` One voxel in ${header.step} along each axis is shown.` : "";
  const more = header.left_out ? ` ${counted(header.left_out, "more channel")} not shown.` : "";
  byId("keys").textContent = space.shape.length === 1
    ? `Point, tap, or use the arrow keys.${more}`
    : `Click or drag in a slice, move the sliders, or use the arrow keys in a slice.${every}`;
  byId("opacity").addEventListener("input", (event) => {
    space.opacity = event.target.valueAsNumber / 100;
    byId("opacity-value").textContent = `${event.target.value}%`;
    looked();
  });
  byId("opacity-value").textContent = "85%";
  byId("numbers").addEventListener("change", (event) => {
    space.outlined = event.target.checked;
    looked();
  });
  const { test } = header;
  if (test && test.failure === null) {
    byId("share").max = String(test.shares.length - 1);
    byId("share").addEventListener("input", (event) => showTest(test, event.target.valueAsNumber));
    byId("test-gain").textContent = `Area between the curves (symmetric relevance gain): ${test.gain}; a random map has 0.`;
    showTest(test, test.start);
  }
  byId("settings").replaceChildren(
    ...header.settings.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, nameElement(text))]),
  );
  classRows(chosen);
  chosen();
  document.body.dataset.ready = "true";
}

start().catch((error) => {
  byId("failed").hidden = false;
  byId("failed").textContent = `This page cannot be shown: ${error.message}`;
  throw error;
});
