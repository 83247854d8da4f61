// What regions say, and the maps made of it: the formulas of WindowEvidence.

const ROUNDING = 1e-4;
const FLAT = 1e-6;

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
  const [height, width] = group.space;
  if (group.owner) return Float64Array.from(group.owner, (region) => values[region]);
  const stride = width + 1;
  const total = new Float64Array((height + 1) * stride);
  const count = new Float64Array((height + 1) * stride);
  for (let region = 0; region < group.count; region += 1) {
    if (!Number.isFinite(values[region])) continue;
    const [top, left, tall, wide] = group.own.subarray(4 * region, 4 * region + 4);
    for (const [y, x, sign] of [
      [top, left, 1],
      [top + tall, left, -1],
      [top, left + wide, -1],
      [top + tall, left + wide, 1],
    ]) {
      total[y * stride + x] += sign * values[region];
      count[y * stride + x] += sign;
    }
  }
  const map = new Float64Array(height * width);
  for (const sums of [total, count]) {
    for (let i = 1; i < sums.length; i += 1) if (i % stride) sums[i] += sums[i - 1];
    for (let i = stride; i < sums.length; i += 1) sums[i] += sums[i - stride];
  }
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      map[y * width + x] = count[y * stride + x] ? total[y * stride + x] / count[y * stride + x] : NaN;
    }
  }
  return map;
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
function meansInside(group, map, { height, width }) {
  const known = map.map((value) => (Number.isFinite(value) ? value : 0));
  const total = new Float64Array(group.count);
  const count = new Float64Array(group.count);
  if (group.cells) {
    group.cells.forEach((region, pixel) => {
      total[region] += known[pixel];
      count[region] += 1;
    });
    return total.map((sum, region) => sum / count[region]);
  }
  const stride = width + 1;
  const sums = new Float64Array((height + 1) * stride);
  for (let y = 0; y < height; y += 1) {
    let row = 0;
    for (let x = 0; x < width; x += 1) {
      row += known[y * width + x];
      sums[(y + 1) * stride + x + 1] = sums[y * stride + x + 1] + row;
    }
  }
  return total.map((_, region) => {
    const [top, left, tall, wide] = group.boxes.subarray(4 * region, 4 * region + 4);
    const [upper, lower] = [top * stride + left, (top + tall) * stride + left];
    return (sums[lower + wide] - sums[lower] - sums[upper + wide] + sums[upper]) / (tall * wide);
  });
}

// Groups with the mean of the map inside each region, and what each region says itself in standard
// deviations of the map of its part, if that is enough to list it.
function saidByRegions(groups, contexts, question, map, photo, ownShare) {
  const maps = [];
  const sizes = groups.map((group) => {
    const asked = group.parts.filter((part) => contexts.includes(part.context));
    const answers = asked.map((part) => {
      const values = partValues(group, part, question);
      const own = partMap(group, part, values, photo);
      const deviation = spread(own) > FLAT * largest(own) ? spread(own) : 1;
      maps.push(own.map((value) => value / deviation));
      return values.map((value) => (Number.isFinite(value) ? value / deviation : 0));
    });
    const means = meansInside(group, map, photo);
    const said = means.map((mean, region) => Math.max(...answers.map((own) => Math.sign(mean) * own[region])));
    return { group, said, means };
  });
  const mean = average(maps, maps.map(() => 1));
  for (const size of sizes) {
    const expected = meansInside(size.group, mean, photo);
    size.carried = Array.from(size.said, (value, region) => value >= ownShare * Math.abs(expected[region]));
    size.said = size.said.map((value, region) => (size.carried[region] ? value : 0));
  }
  // Regions that are only read from random sets were not asked by themselves.
  const alone = sizes.filter(({ group }) =>
    group.parts.some((part) => !part.in_sets && contexts.includes(part.context)));
  return alone.length ? alone : sizes;
}

// The regions with the strongest evidence for and against, as the map has them: what
// strongest_regions of the Python side lists. Those of the first size are preferred; where one says
// next to nothing itself, the region that makes the map there is listed. A region that shares a small
// part of its pixels with those listed before is listed without these, its lost pixels.
function strongestRegions(sizes, first, map, photo, limits) {
  const { count, least_share: leastShare, shared_part: sharedPart } = limits;
  const before = (a, b) => b.strength - a.strength || a.place - b.place || a.region - b.region;
  const entry = (place, region, replaces = false, value = sizes[place].means[region]) => (
    { place, region, replaces, strength: Math.abs(value) });
  const queue = Array.from(sizes[first].means, (_, region) => entry(first, region))
    .filter(({ strength }) => Number.isFinite(strength))
    .sort(before);
  const least = queue.length ? leastShare * queue[0].strength : 0;
  const chosen = { for: [], against: [] };
  const taken = new Uint8Array(photo.height * photo.width);
  const insert = (own, k) => {
    const at = queue.findIndex((one, place) => place > k && before(own, one) < 0);
    queue.splice(at < 0 ? queue.length : at, 0, own);
  };
  for (let k = 0; k < queue.length && queue[k].strength > least; k += 1) {
    const { place, region, replaces, strength } = queue[k];
    const { group, means, carried } = sizes[place];
    const sign = Math.sign(means[region]);
    const kind = chosen[sign < 0 ? "against" : "for"];
    const all = kind.length === count ? [] : pixelsOf({ group, region }, photo);
    const lost = new Set(all.filter((pixel) => taken[pixel]));
    if (!all.length || lost.size > sharedPart * all.length) continue;
    const pixels = all.filter((pixel) => !lost.has(pixel));
    const value = lost.size ? meanOf(map, pixels) : means[region];
    if (lost.size && Math.sign(value) !== sign) continue;
    if (lost.size && Math.abs(value) < strength) {
      insert(entry(place, region, replaces, value), k);
      continue;
    }
    const other = carried[region] || replaces ? null : strongestInside(sizes, sign, pixels, photo);
    if (other) {
      insert(entry(...other, true), k);
      continue;
    }
    pixels.forEach((pixel) => { taken[pixel] = 1; });
    kind.push({ group, region, lost, value, carried: carried[region] });
  }
  for (const kind of Object.values(chosen)) kind.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  return chosen;
}

// The mean of a map over some pixels, with 0 for those that are not known.
function meanOf(map, pixels) {
  return pixels.reduce((sum, pixel) => sum + (Number.isFinite(map[pixel]) ? map[pixel] : 0), 0) / pixels.length;
}

// Of the regions with a sign, the one that says most times the share of it that lies in some pixels.
function strongestInside(sizes, sign, pixels, photo) {
  const inside = new Float64Array(photo.height * photo.width);
  pixels.forEach((pixel) => { inside[pixel] = 1; });
  let [most, found] = [0, null];
  sizes.forEach(({ group, means, said }, place) => {
    meansInside(group, inside, photo).forEach((share, region) => {
      if (Math.sign(means[region]) === sign && share * said[region] > most) {
        [most, found] = [share * said[region], [place, region]];
      }
    });
  });
  return found;
}

// The pixels of a region; of a listed one, those that it has not lost.
function pixelsOf({ group, region, lost = new Set() }, photo) {
  const { top, left, height, width } = boxOf({ group, region });
  const pixels = [];
  for (let y = top; y < top + height; y += 1) {
    for (let x = left; x < left + width; x += 1) {
      const pixel = y * photo.width + x;
      if ((!group.cells || group.cells[pixel] === region) && !lost.has(pixel)) pixels.push(pixel);
    }
  }
  return pixels;
}

// Whether the questions and sizes disagree about a region by as much as its value.
function isUncertain(found, maps, photo) {
  if (maps.length < 2) return false;
  const pixels = pixelsOf(found, photo);
  const each = maps.map((map) => {
    const own = spread(map);
    return meanOf(map, pixels) / (own <= FLAT * largest(map) ? 1 : own);
  });
  const mean = each.reduce((sum, value) => sum + value, 0) / each.length;
  const squares = each.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return Math.abs(mean) <= Math.sqrt(squares / (each.length - 1));
}

// The box of the pixels that a listed region has not lost.
function boxLeft(found, photo) {
  if (!found.lost.size) return boxOf(found);
  const pixels = pixelsOf(found, photo);
  const rows = pixels.map((pixel) => Math.floor(pixel / photo.width));
  const columns = pixels.map((pixel) => pixel % photo.width);
  const ends = (places) => places.reduce(([a, b], c) => [Math.min(a, c), Math.max(b, c)], [Infinity, -1]);
  const [[top, bottom], [left, right]] = [ends(rows), ends(columns)];
  return { top, left, height: bottom - top + 1, width: right - left + 1 };
}

function boxOf({ group, region }) {
  const [top, left, height, width] = group.boxes.subarray(4 * region, 4 * region + 4);
  return { top, left, height, width };
}

function largest(map) {
  return map.reduce((most, value) => Math.max(most, Number.isFinite(value) ? Math.abs(value) : 0), 0);
}
