// Evidence as colour: transparent at zero, red for, blue against, and grey where nothing is known.

const UNKNOWN = [128, 128, 128];
const STRONGEST = 0.85; // how much the strongest evidence covers the grey photo

// "#b2182b" as [178, 24, 43].
function fromHex(hex) {
  return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
}

// The colour of a value on white, where 1 is the strongest evidence for and -1 that against.
function colourOf(value, colours) {
  if (Number.isNaN(value)) return UNKNOWN;
  const share = STRONGEST * Math.min(Math.abs(value), 1);
  return fromHex(value < 0 ? colours.against : colours.for).map((end) => Math.round(255 + share * (end - 255)));
}

// The scale as a CSS gradient; values under the threshold are not coloured.
function scaleGradient(hidden, colours) {
  const stops = [];
  for (let step = 0; step <= 40; step += 1) {
    const value = step / 20 - 1;
    const colour = Math.abs(value) < hidden ? [255, 255, 255] : colourOf(value, colours);
    stops.push(`rgb(${colour.join(" ")}) ${(step * 2.5).toFixed(1)}%`);
  }
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

// A map as pixels, to be drawn over the grey photo; what is under the threshold is clear.
function mapPixels(values, scale, threshold, { width, height }, colours) {
  const image = new ImageData(width, height);
  const ends = [fromHex(colours.against), fromHex(colours.for)];
  values.forEach((value, pixel) => {
    if (Math.abs(value) < threshold) return;
    const known = !Number.isNaN(value);
    const colour = known ? ends[value < 0 ? 0 : 1] : UNKNOWN;
    const alpha = known ? Math.round(255 * Math.min(Math.abs(value) / scale, 1)) : 255;
    image.data.set([...colour, alpha], 4 * pixel);
  });
  return image;
}
