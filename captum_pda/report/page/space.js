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
    this.canvas.style.setProperty("--ratio", String(ratio));
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
    if (space.outlined) this.outlines(context, index, height, width, [sx, sy]);
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

  outlines(context, index, height, width, scale) {
    const { header } = space;
    for (const [against, kind] of ["for", "against"].entries()) {
      const path = new Path2D();
      for (let place = 1; place <= header.n_listed; place += 1) {
        const number = place + against * header.n_listed;
        const isOwn = (y, x) => space.markAt(index(y, x)) === number;
        addBorder(path, isOwn, { top: 0, left: 0, height, width }, scale);
      }
      outline(context, path, 2.5, header.colours[kind]);
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

function showTest(test, step) {
  showCurves(test, step, space.header.measure);
  const { share, hidden, shown } = test.words;
  const words = `without the strongest ${share[step]}: ${hidden[0]} -> ${hidden[step]}; with only these: ${shown[step]}`;
  byId("test-words").textContent = typeset(words);
}

// What belongs to the class that was chosen.
function showClass(changed) {
  const { header, listed, first } = space;
  for (const kind of ["for", "against"]) {
    const row = (region, place) => regionRow(kind, place, region.answers, null, () => {
      space.place = [...region.place];
      changed();
    });
    showList(kind, header.labels[first], null, listed[kind], row);
  }
  const { test } = header;
  const isTested = Boolean(test) && test.failure === null && test.place === first;
  byId("test").hidden = !isTested;
  showSentence(test, isTested, "input");
  showScale({ scale: header.scale, hidden: 0, words: header.scale_words, total: header.totals[first] }, header);
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
  const chosen = (first) => {
    space.first = first;
    showClass(looked);
    looked();
  };
  const panels = space.shape.length === 1 ? [new Signal(looked)] : [0, 1, 2].map((axis) => new Slice(axis, looked));
  byId("panels").className = space.shape.length === 1 ? "signal" : "volume";
  byId("panels").replaceChildren(...panels.map((panel) => panel.figure));
  showHeader(header);
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
    byId("share").addEventListener("input", (event) => showTest(test, event.target.valueAsNumber));
    showTest(test, test.start);
  }
  showClasses(header, space.first, chosen);
  chosen(space.first);
}

run(start);
