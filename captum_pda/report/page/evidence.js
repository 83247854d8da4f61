// What regions say, and the maps made of it: the formulas of WindowEvidence.

const ROUNDING = 1e-4;

// The methods of a report; each has groups of regions of one size at one depth, and each group a
// part for every context.
function readMethods({ header, arrays }) {
  const { height, width } = header.photo;
  return header.methods.map(({ name, groups }) => ({
    name,
    groups: groups.map((group, number) => {
      const own = arrays[group.boxes];
      const [down, across] = [height / group.space[0], width / group.space[1]];
      const boxes = Float64Array.from(own, (side, i) => side * (i % 2 ? across : down));
      return {
        ...group,
        number,
        own,
        boxes,
        count: own.length / 4,
        owner: group.owner === null ? null : arrays[group.owner],
        parts: group.parts.map((part) => readPart(part, arrays)),
      };
    }),
  }));
}

function readPart(part, arrays) {
  const optional = (number) => (number === null ? null : arrays[number]);
  return {
    ...part,
    reference: arrays[part.reference],
    changes: arrays[part.changes],
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

// What each region of a part says for a class, or for it rather than for another.
function partValues(group, part, { first, second }) {
  const sign = part.context === "full" ? -1 : 1;
  const values = new Float64Array(group.count);
  const at = (table, place, region) => table[place * group.count + region];
  for (let region = 0; region < group.count; region += 1) {
    if (part.values) {
      const other = second === null ? 0 : at(part.values, second, region);
      values[region] = at(part.values, first, region) - other;
    } else if (second === null) {
      values[region] = (sign * at(part.changes, first, region)) / Math.LN2;
    } else {
      const ratio = (change) =>
        logSigmoid(part.reference[first] + change(first)) -
        logSigmoid(part.reference[second] + change(second));
      const changed = ratio((place) => at(part.changes, place, region));
      values[region] = (sign * (changed - ratio(() => 0))) / Math.LN2;
    }
  }
  return values;
}

// The mean over the chosen contexts.
function groupValues(group, contexts, question) {
  const parts = group.parts.filter((part) => contexts.includes(part.context));
  const total = new Float64Array(group.count);
  for (const part of parts) {
    partValues(group, part, question).forEach((value, region) => {
      total[region] += value / parts.length;
    });
  }
  return total;
}

// The standard error of a region's value, where there is one: that of the mean over contexts.
function standardError(group, contexts, { first, second }, region) {
  const parts = group.parts.filter((part) => contexts.includes(part.context));
  if (second !== null || !parts.some((part) => part.errors)) return null;
  let squares = 0;
  for (const part of parts) {
    if (part.errors) squares += part.errors[first * group.count + region] ** 2;
  }
  return Math.sqrt(squares) / parts.length;
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

// sum_k (M_k / s_k) / sum_k (1 / s_k) of maps M_k with spreads s_k.
function weightedMean(maps) {
  if (maps.length === 1) return maps[0];
  const spreads = maps.map(spread);
  const largest = Math.max(...spreads);
  const weights = spreads.map((one) => (one <= ROUNDING * largest ? 0 : 1 / one));
  if (weights.every((weight) => weight === 0)) weights.fill(1);
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

// The map of groups in some contexts, on the pixels of the photo: the weighted mean over the sizes
// of each depth and context, and of those means.
function evidenceMap(groups, contexts, question, { height, width }) {
  const maps = new Map();
  for (const group of groups) {
    for (const part of group.parts.filter((one) => contexts.includes(one.context))) {
      const own = averaged(group, partValues(group, part, question));
      const key = `${part.context} ${group.depth}`;
      if (!maps.has(key)) maps.set(key, []);
      maps.get(key).push(enlarged(own, group.space, height, width));
    }
  }
  return weightedMean([...maps.values()].map(weightedMean));
}

function largest(map) {
  return map.reduce((most, value) => Math.max(most, Number.isFinite(value) ? Math.abs(value) : 0), 0);
}
