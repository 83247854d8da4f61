// The map's test on its own photo: the strongest pixels hidden, or only them shown.

const BLURRED_SIDE = 11; // pixels of the longer side that are left of a blurred photo

class MapTest {
  constructor(view, photo) {
    this.view = view;
    this.mode = "hidden";
    const { width, height } = view.photo;
    const read = (draw) => layer(width, height, draw).getContext("2d").getImageData(0, 0, width, height);
    this.photo = read((context) => context.drawImage(photo, 0, 0));
    const ratio = BLURRED_SIDE / Math.max(width, height);
    const [wide, tall] = [width, height].map((side) => Math.max(1, Math.round(side * ratio)));
    const small = layer(wide, tall, (context) => {
      context.imageSmoothingQuality = "high";
      context.drawImage(photo, 0, 0, wide, tall);
    });
    this.blurred = read((context) => {
      context.imageSmoothingQuality = "high";
      context.drawImage(small, 0, 0, width, height);
    });
    byId("share").addEventListener("input", (event) => this.show(event.target.valueAsNumber));
  }

  get test() {
    return this.view.methods[this.view.choice.method].test;
  }

  // Whether the map that is shown is the one that was tested.
  get isShown() {
    const { choice, isWhole } = this.view;
    return isWhole && choice.second === null && choice.first === this.test.place;
  }

  redraw() {
    const { test } = this;
    const isMade = Boolean(test) && test.failure === null;
    const shown = isMade && this.isShown;
    showSentence(test, shown, "photo");
    byId("test").hidden = !isMade;
    if (!isMade) return;
    byId("test-body").hidden = !shown;
    byId("test-other").hidden = shown;
    const name = isolated(this.view.header.labels[test.place]);
    byId("test-other").textContent = `The map for ${name}, of all regions and questions, was tested; this one was not.`;
    if (!shown) return;
    this.order = strongestFirst(this.view.map);
    const modes = [
      { value: "hidden", words: "hide the strongest" },
      { value: "shown", words: "show only them" },
    ];
    choices(byId("test-mode"), "test-mode", modes, this.mode, (mode) => {
      this.mode = mode;
      this.show(this.step);
    });
    this.show(test.start);
  }

  // The photo and the numbers at one of the shares that were tested.
  show(step) {
    const { test, mode } = this;
    this.step = step;
    const [share, predicted] = [test.words.share[step], test.words[mode][step]];
    const words = mode === "hidden"
      ? `without the strongest ${share}: ${test.words.hidden[0]} -> ${predicted}`
      : `with only the strongest ${share}: ${predicted}`;
    byId("test-words").textContent = typeset(words);
    this.drawPhoto(test.shares[step], words);
    showCurves(test, step, this.view.measure);
  }

  drawPhoto(share, words) {
    const { width, height } = this.view.photo;
    const pixels = new ImageData(new Uint8ClampedArray(this.photo.data), width, height);
    const count = share === 0 ? 0 : Math.max(1, Math.round(share * this.order.length));
    const gone = this.mode === "hidden" ? this.order.subarray(0, count) : this.order.subarray(count);
    for (const pixel of gone) {
      pixels.data.set(this.blurred.data.subarray(4 * pixel, 4 * pixel + 4), 4 * pixel);
    }
    const canvas = byId("test-photo");
    [canvas.width, canvas.height] = [width, height];
    canvas.getContext("2d", { willReadFrequently: true }).putImageData(pixels, 0, 0);
    canvas.setAttribute("aria-label", words);
  }
}

// The pixels in the order of a map, the strongest first and unknown ones last.
function strongestFirst(map) {
  const known = map.map((value) => (Number.isNaN(value) ? -Infinity : value));
  const order = Uint32Array.from(map.keys());
  return order.sort((a, b) => (known[b] === known[a] ? a - b : known[b] - known[a]));
}
