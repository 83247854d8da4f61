// What regions say, and the maps made of it: the formulas of WindowEvidence.

const ROUNDING = 1e-4;

// The methods of a report; each has groups of regions of one size at one depth, and each group a
// part for every context. Boxes and cells lie on the pixels of the photo.
function readMethods({ header, arrays }) {
  return header.methods.map((method) => {
    const groups = method.groups.map((group, number) => {
      const own = group.boxes === null ? null : arrays[group.boxes];
      const owner = group.owner === null ? null : arrays[group.owner];
      const cells = owner && onPhoto(owner, group.space, header.photo);
      return {
        ...group,
        number,
        own,
        owner,
        cells,
        boxes: cells ? tightBoxes(cells, group.count, header.photo) : photoBoxes(own, group.space, header.photo),
        parts: group.parts.map((part) => readPart(part, arrays)),
      };
    });
    const withGroup = (one) => ({ ...one, group: groups[one.group], lost: new Set(one.lost) });
    const named = (lists) =>
      lists && {
        for: lists.for.map(withGroup),
        against: lists.against.map(withGroup),
      };
    return { ...method, groups, listed: method.listed.map(named), pair: named(method.pair) };
  });
}

// The region of each pixel of the photo, where a feature map has fewer places.
function onPhoto(owner, space, { height, width }) {
  const [rows, columns] = space;
  if (isOnPhoto({ space }, { height, width })) return owner;
  return Int32Array.from({ length: height * width }, (_, pixel) => {
    const y = Math.floor((Math.floor(pixel / width) * rows) / height);
    return owner[y * columns + Math.floor(((pixel % width) * columns) / width)];
  });
}

// Top, left, height and width of each region; zeros for one without pixels.
function tightBoxes(cells, count, { width }) {
  const ends = new Int32Array(4 * count).fill(-1);
  cells.forEach((region, pixel) => {
    const [y, x, i] = [Math.floor(pixel / width), pixel % width, 4 * region];
    if (ends[i] < 0) ends.set([y, x, y, x], i);
    ends[i + 1] = Math.min(ends[i + 1], x);
    ends[i + 2] = y;
    ends[i + 3] = Math.max(ends[i + 3], x);
  });
  return ends.map((end, i) => {
    if (end < 0) return 0;
    return i % 4 < 2 ? end : end - ends[i - 2] + 1;
  });
}

function photoBoxes(own, [rows, columns], { height, width }) {
  const first = (place, size, places) => Math.ceil((place * size) / places);
  const boxes = new Int32Array(own.length);
  for (let i = 0; i < own.length; i += 4) {
    const [top, left, tall, wide] = own.subarray(i, i + 4);
    const [y, x] = [first(top, height, rows), first(left, width, columns)];
    boxes.set([y, x, first(top + tall, height, rows) - y, first(left + wide, width, columns) - x], i);
  }
  return boxes;
}

function readPart(part, arrays) {
  const optional = (number) => (number === null ? null : arrays[number]);
  return {
    ...part,
    reference: arrays[part.reference],
    changes: arrays[part.changes],
    density: optional(part.density),
    values: optional(part.values),
    errors: optional(part.errors),
  };
}

function logSigmoid(x) {
  return x < 0 ? x - Math.log1p(Math.exp(x)) : -Math.log1p(Math.exp(-x));
}

function sigmoid(x) {
  return 1 / (1 + Math.exp(-x));
}

// The predictions for a class before a region is changed and after.
function predictions(group, part, region, place, measure) {
  const before = part.reference[place];
  const after = before + part.changes[place * group.count + region];
  return measure.probabilities ? [sigmoid(before), sigmoid(after)] : [before, after];
}

// What each region of a part says for a class, or for it rather than for another; or one region.
function partValues(group, part, { first, second }, only = null) {
  const { sign } = part;
  const regions = only === null ? [...Array(group.count).keys()] : [only];
  const at = (table, place, region) => table[place * group.count + region];
  return Float64Array.from(regions, (region) => {
    if (part.values) {
      const other = second === null ? 0 : at(part.values, second, region);
      return at(part.values, first, region) - other;
    }
    if (second === null) return (sign * at(part.changes, first, region)) / Math.LN2;
    const ratio = (change) =>
      logSigmoid(part.reference[first] + change(first)) -
      logSigmoid(part.reference[second] + change(second));
    const changed = ratio((place) => at(part.changes, place, region));
    return (sign * (changed - ratio(() => 0))) / Math.LN2;
  });
}

// The standard error of a region's value in a part, where there is one.
function standardError(group, part, { first, second }, region) {
  if (second !== null || !part.errors) return null;
  return part.errors[first * group.count + region];
}

// Each pixel the mean of the regions that cover it; NaN where none is known.
function averaged(group, values) {
  if (group.owner) return Float64Array.from(group.owner, (region) => values[region]);
  const [height, width] = group.space;
  const total = new Float64Array(height * width);
  const count = new Float64Array(height * width);
  values.forEach((value, region) => {
    if (!Number.isFinite(value)) return;
    eachPixel(boxAt(group.own, region), width, (pixel) => {
      total[pixel] += value;
      count[pixel] += 1;
    });
  });
  return total.map((sum, pixel) => sum / count[pixel]);
}

// A map of a layer's places read between them, on the pixels of the photo.
function enlarged(map, [rows, columns], height, width) {
  if (rows === height && columns === width) return map;
  const along = (size, places) =>
    Array.from({ length: size }, (_, i) => {
      const at = Math.max(0, ((i + 0.5) * places) / size - 0.5);
      const below = Math.min(Math.floor(at), places - 1);
      return [below, Math.min(below + 1, places - 1), at - below];
    });
  const [down, across] = [along(height, rows), along(width, columns)];
  const large = new Float64Array(height * width);
  down.forEach(([top, bottom, low], y) =>
    across.forEach(([left, right, far], x) => {
      const upper = map[top * columns + left] * (1 - far) + map[top * columns + right] * far;
      const lower = map[bottom * columns + left] * (1 - far) + map[bottom * columns + right] * far;
      large[y * width + x] = upper * (1 - low) + lower * low;
    }),
  );
  return large;
}

function spread(values) {
  const known = values.filter(Number.isFinite);
  if (!known.length) return 0;
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  return Math.sqrt(known.reduce((sum, value) => sum + (value - mean) ** 2, 0) / known.length);
}

// The mean of maps, each with its weight, over those that know a pixel.
function average(maps, weights) {
  if (maps.length === 1) return maps[0];
  return maps[0].map((_, pixel) => {
    let [total, counted] = [0, 0];
    maps.forEach((map, k) => {
      if (Number.isFinite(map[pixel])) {
        total += weights[k] * map[pixel];
        counted += weights[k];
      }
    });
    return counted ? total / counted : NaN;
  });
}

// sum_k (w_k M_k / s_k) / sum_k (w_k / s_k) of maps M_k with weights w_k and spreads s_k.
function weightedMean(maps, own) {
  const spreads = maps.map(spread);
  const most = Math.max(...spreads);
  const weights = spreads.map((one, k) => (one <= ROUNDING * most ? 0 : own[k] / one));
  if (weights.every((weight) => weight === 0)) return average(maps, own);
  return average(maps, weights);
}

// The map of a part's values on the pixels of the photo. What was read from random sets counts per
// area. Maps of a layer get the outlines of a finer group, if there is one.
function partMap(group, part, values, photo, onto = null) {
  const scaled = part.density ? values.map((value, region) => value * part.density[region]) : values;
  const map = enlarged(averaged(group, scaled), group.space, photo.height, photo.width);
  if (onto === null || isOnPhoto(group, photo)) return map;
  const means = meansInside(onto, map, photo);
  return Float64Array.from(onto.cells, (region) => means[region]);
}

function isOnPhoto({ space: [rows, columns] }, { height, width }) {
  return rows === height && columns === width;
}

// The map of groups in some contexts, on the pixels of the photo: the mean over the sizes of each
// question, which is a depth and a context, and the weighted mean of these.
function evidenceMap(groups, contexts, question, photo) {
  const maps = new Map();
  const asked = groups.filter(({ parts }) => parts.some((part) => contexts.includes(part.context)));
  const finest = asked
    .filter((group) => group.cells && isOnPhoto(group, photo))
    .reduce((best, group) => (best === null || group.count > best.count ? group : best), null);
  for (const group of asked) {
    for (const part of group.parts.filter((one) => contexts.includes(one.context))) {
      const key = `${part.context} ${group.depth}`;
      if (!maps.has(key)) maps.set(key, { weight: part.weight, maps: [] });
      maps.get(key).maps.push(partMap(group, part, partValues(group, part, question), photo, finest));
    }
  }
  const questions = [...maps.values()];
  const means = questions.map((one) => average(one.maps, one.maps.map(() => 1)));
  return weightedMean(means, questions.map((one) => one.weight));
}

// The mean of a map inside each region of a group; NaN for a region without pixels.
function meansInside(group, map, { width }) {
  const known = map.map((value) => (Number.isFinite(value) ? value : 0));
  const total = new Float64Array(group.count);
  const count = new Float64Array(group.count);
  const add = (region, pixel) => {
    total[region] += known[pixel];
    count[region] += 1;
  };
  if (group.cells) group.cells.forEach(add);
  else for (let region = 0; region < group.count; region += 1) {
    eachPixel(boxAt(group.boxes, region), width, (pixel) => add(region, pixel));
  }
  return total.map((sum, region) => sum / count[region]);
}

// The regions of one size with the strongest evidence for and against: in the order of the map
// inside them, and with its sign. Of those that overlap, the stronger is listed.
function strongestRegions(group, means, photo, { count, least_share: leastShare }) {
  const strength = (region) => Math.abs(means[region]);
  const order = [...means.keys()].filter((region) => Number.isFinite(means[region]));
  order.sort((a, b) => strength(b) - strength(a) || a - b);
  const taken = new Uint8Array(photo.height * photo.width);
  const chosen = { for: [], against: [] };
  for (const region of order) {
    if (strength(region) <= leastShare * strength(order[0])) break;
    const found = { group, region, lost: new Set(), value: means[region] };
    const kind = chosen[found.value < 0 ? "against" : "for"];
    const pixels = pixelsOf(found, photo);
    if (kind.length === count || pixels.some((pixel) => taken[pixel])) continue;
    pixels.forEach((pixel) => { taken[pixel] = 1; });
    kind.push(found);
  }
  return chosen;
}

// The pixels of a region; of a listed one, those that it has not lost.
function pixelsOf({ group, region, lost }, { width }) {
  const pixels = [];
  eachPixel(boxAt(group.boxes, region), width, (pixel) => {
    if ((!group.cells || group.cells[pixel] === region) && !(lost && lost.has(pixel))) pixels.push(pixel);
  });
  return pixels;
}

function eachPixel({ top, left, height, width }, across, visit) {
  for (let y = top; y < top + height; y += 1) {
    for (let x = left; x < left + width; x += 1) visit(y * across + x);
  }
}

function boxOf({ group, region }) {
  return boxAt(group.boxes, region);
}

function boxAt(boxes, region) {
  const [top, left, height, width] = boxes.subarray(4 * region, 4 * region + 4);
  return { top, left, height, width };
}

function largest(map) {
  return map.reduce((most, value) => Math.max(most, Number.isFinite(value) ? Math.abs(value) : 0), 0);
}
