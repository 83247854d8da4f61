// Evidence as colour: blue through white to red, and grey where nothing is known.

const RED = [[255, 255, 255], [253, 219, 199], [244, 165, 130], [214, 96, 77], [178, 24, 43]];
const BLUE = [[255, 255, 255], [209, 229, 240], [146, 197, 222], [67, 147, 195], [33, 102, 172]];
const UNKNOWN = [128, 128, 128];

// The colour of a value, where 1 is the strongest evidence for and -1 that against.
function colourOf(value) {
  if (Number.isNaN(value)) return UNKNOWN;
  const stops = value < 0 ? BLUE : RED;
  const place = Math.min(Math.abs(value), 1) * (stops.length - 1);
  const below = Math.min(Math.floor(place), stops.length - 2);
  const share = place - below;
  return stops[below].map((from, i) => Math.round(from + share * (stops[below + 1][i] - from)));
}

// The scale as a CSS gradient; values under the threshold are not coloured.
function scaleGradient(hidden) {
  const stops = [];
  for (let step = 0; step <= 40; step += 1) {
    const value = step / 20 - 1;
    const colour = Math.abs(value) < hidden ? [255, 255, 255] : colourOf(value);
    stops.push(`rgb(${colour.join(" ")}) ${(step * 2.5).toFixed(1)}%`);
  }
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

// Colours of 513 steps from -1 to 1, as the pixels of an image; the last one is of the unknown.
const STEPS = 512;
const COLOURS = new Uint8ClampedArray(4 * (STEPS + 2));
for (let step = 0; step <= STEPS; step += 1) {
  COLOURS.set([...colourOf((2 * step) / STEPS - 1), 255], 4 * step);
}
COLOURS.set([...UNKNOWN, 255], 4 * (STEPS + 1));
const COLOUR_PIXELS = new Uint32Array(COLOURS.buffer);

// A map as pixels, to be drawn over the photo; what is under the threshold is clear.
function mapPixels(values, scale, threshold, width, height) {
  const image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < values.length; i += 1) {
    const value = values[i];
    if (Math.abs(value) < threshold) continue;
    const share = Math.min(Math.max(value / scale, -1), 1);
    const step = Number.isNaN(share) ? STEPS + 1 : Math.round(((share + 1) * STEPS) / 2);
    pixels[i] = COLOUR_PIXELS[step];
  }
  return image;
}
