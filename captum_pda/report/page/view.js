// What is looked at: the choices made, and everything that follows from them.

const SHOWN = 5; // how many regions are listed for and against
const LEAST_BITS = 0.01; // regions of fewer bits are not listed
const MOST_KEPT = 100; // how many maps are remembered

class View {
  constructor(block, images) {
    const { header } = block;
    this.header = header;
    this.photo = header.photo;
    this.measure = header.measure;
    this.images = images;
    this.methods = readMethods(block);
    this.choice = {
      method: 0,
      group: null,
      context: null,
      first: header.first,
      second: header.second,
      opacity: 0.55,
      threshold: 0,
      held: null,
    };
    this.selected = null;
    this.cache = new Map();
    this.choose({});
  }

  // Takes new choices, and works out what they mean.
  choose(changes) {
    Object.assign(this.choice, changes);
    const method = this.methods[this.choice.method];
    if (this.choice.group !== null && !method.groups[this.choice.group]) this.choice.group = null;
    this.groups = this.choice.group === null ? method.groups : [method.groups[this.choice.group]];
    this.offered = contextsOf(this.groups);
    if (!this.offered.includes(this.choice.context)) this.choice.context = null;
    this.contexts = this.choice.context === null ? this.offered : [this.choice.context];
    if (this.choice.second === this.choice.first) this.choice.second = null;
    this.question = { first: this.choice.first, second: this.choice.second };
    this.map = this.mapFor(this.question);
    this.fitted = this.fittedScale() || 1;
    this.scale = this.choice.held || this.fitted;
    this.regions = this.pointable().map((group) => this.valuesOf(group));
    const least = this.measure.unit === "bits" ? LEAST_BITS : 0;
    this.listed = strongest(this.regions, SHOWN, Math.max(this.choice.threshold, least));
    if (this.selected) this.keepSelected();
  }

  // Regions that can be pointed at: of the photo itself, unless a layer was chosen.
  pointable() {
    const own = this.groups.filter((group) => group.depth === "input");
    return own.length ? own : this.groups;
  }

  valuesOf(group) {
    const contexts = this.contexts.filter((one) => contextsOf([group]).includes(one));
    const values = groupValues(group, contexts, this.question);
    const plain = values.map((value) => (Number.isFinite(value) ? value : 0));
    return { group, contexts, values, plain, spread: spread(plain) || 1 };
  }

  mapFor(question) {
    const { method, group, context } = this.choice;
    const key = [method, group, context, question.first, question.second].join();
    if (!this.cache.has(key)) {
      if (this.cache.size >= MOST_KEPT) this.cache.clear();
      this.cache.set(key, evidenceMap(this.groups, this.contexts, question, this.photo));
    }
    return this.cache.get(key);
  }

  // One scale for all classes of the page, so that they can be compared.
  fittedScale() {
    const classes = this.header.labels.map((_, first) => this.mapFor({ first, second: null }));
    return Math.max(largest(this.map), ...classes.map(largest));
  }

  get className() {
    return this.header.labels[this.choice.first];
  }

  get otherName() {
    return this.choice.second === null ? null : this.header.labels[this.choice.second];
  }

  // The strongest region at a place, relative to the spread of its size.
  regionAt(y, x) {
    let [best, found] = [-1, null];
    for (const regions of this.regions) {
      const { group, plain } = regions;
      const several = this.regions.length > 1 ? regions.spread : 1;
      for (const region of regionsAt(group, y, x, this.photo.width)) {
        const strength = Math.abs(plain[region]) / several;
        if (strength > best) [best, found] = [strength, { group, region }];
      }
    }
    return found;
  }

  select(found, place = null) {
    this.selected = found && { ...found, place: place || middle(boxOf(found)) };
  }

  // After a choice, the strongest region at the same place is looked at.
  keepSelected() {
    const { y, x } = this.selected.place;
    this.select(this.regionAt(Math.floor(y), Math.floor(x)), this.selected.place);
  }

  // Everything that is told of a region.
  describe({ group, region }) {
    const regions = this.regions.find((one) => one.group === group) || this.valuesOf(group);
    return {
      group,
      region,
      box: boxOf({ group, region }),
      value: regions.values[region],
      error: standardError(group, regions.contexts, this.question, region),
      contexts: regions.contexts,
      parts: group.parts
        .filter((part) => regions.contexts.includes(part.context))
        .map((part) => this.describePart(group, part, region)),
    };
  }

  describePart(group, part, region) {
    const { first, second } = this.choice;
    const value = groupValues(group, [part.context], this.question)[region];
    const both = (place) => {
      const [before, after] = predictions(group, part, region, place, this.measure);
      return part.context === "full" ? { seen: before, not: after } : { seen: after, not: before };
    };
    return {
      part,
      context: part.context,
      value,
      error: standardError(group, [part.context], this.question, region),
      first: both(first),
      second: second === null ? null : both(second),
    };
  }
}

function contextsOf(groups) {
  const found = groups.flatMap((group) => group.parts.map((part) => part.context));
  return ["full", "empty"].filter((context) => found.includes(context));
}

function boxOf({ group, region }) {
  const [top, left, height, width] = group.boxes.subarray(4 * region, 4 * region + 4);
  return { top, left, height, width };
}

function middle({ top, left, height, width }) {
  return { y: top + height / 2, x: left + width / 2 };
}

function* regionsAt(group, y, x, width) {
  if (group.owner && group.depth === "input") {
    yield group.owner[y * width + x];
    return;
  }
  const { boxes } = group;
  for (let region = 0, i = 0; region < group.count; region += 1, i += 4) {
    const inside = y >= boxes[i] && y < boxes[i] + boxes[i + 2];
    if (inside && x >= boxes[i + 1] && x < boxes[i + 1] + boxes[i + 3]) yield region;
  }
}

// The strongest regions for and against that do not overlap a stronger one of their kind.
function strongest(regions, n, threshold) {
  const all = regions.flatMap(({ group, plain, spread: own }) =>
    Array.from(plain, (value, region) => ({
      group,
      region,
      value,
      strength: Math.abs(value) / (regions.length > 1 ? own : 1),
      box: boxOf({ group, region }),
    })),
  );
  const pick = (sign) => {
    const kind = all.filter(({ value }) => sign * value > 0 && Math.abs(value) >= threshold);
    kind.sort((a, b) => b.strength - a.strength);
    const chosen = [];
    for (const one of kind) {
      if (chosen.length === n) break;
      if (!chosen.some((other) => overlap(one.box, other.box))) chosen.push(one);
    }
    return chosen;
  };
  return { for: pick(1), against: pick(-1) };
}

function overlap(a, b) {
  const apart =
    a.top >= b.top + b.height ||
    b.top >= a.top + a.height ||
    a.left >= b.left + b.width ||
    b.left >= a.left + a.width;
  return !apart;
}
