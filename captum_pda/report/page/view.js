// What is looked at: the choices made, and everything that follows from them.

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
      opacity: 0.85,
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
    const asked = contextsOf(this.groups);
    this.offered = Object.keys(this.header.words.contexts).filter((context) => asked.includes(context));
    if (!this.offered.includes(this.choice.context)) this.choice.context = null;
    this.contexts = this.choice.context === null ? this.offered : [this.choice.context];
    if (this.choice.second === this.choice.first) this.choice.second = null;
    this.question = { first: this.choice.first, second: this.choice.second };
    this.map = this.mapFor(this.question);
    this.fitted = this.fittedScale() || 1;
    this.scale = this.choice.held || this.fitted;
    this.means = new Map();
    // Regions of the photo itself can be pointed at, unless a layer was chosen.
    const some = this.groups.filter((group) => contextsOf([group]).some((one) => this.contexts.includes(one)));
    const own = some.filter((group) => group.depth === "input");
    [this.pointed] = own.length ? own : some;
    this.listed = this.listedRegions();
    if (this.selected) this.keepSelected();
  }

  // Whether the map is that of all regions and questions, as Python's attribution.
  get isWhole() {
    return this.choice.group === null && this.choice.context === null;
  }

  // Python's own list where there is one for this choice; otherwise one of the regions pointed at.
  listedRegions() {
    const { first, second } = this.choice;
    const { listed, pair } = this.methods[this.choice.method];
    const isPair = first === this.header.first && second === this.header.second;
    let found = second === null ? listed[first] : isPair ? pair : null;
    if (!found || !this.isWhole) found = this.ownList();
    const strong = (one) => Math.abs(one.value) >= this.choice.threshold;
    return { for: found.for.filter(strong), against: found.against.filter(strong) };
  }

  ownList() {
    const { pointed, header } = this;
    const found = strongestRegions(pointed, this.meansOf(pointed), this.photo, header.listed);
    const told = (one) => {
      const { parts } = this.describe(one);
      const answers = parts.map((part) => answerWords(part, header));
      if (!parts.some(({ value }) => value * one.value > 0)) answers.push(header.words.uncertain);
      return { ...one, answers };
    };
    return { for: found.for.map(told), against: found.against.map(told) };
  }

  // The mean of the map inside each region of a group.
  meansOf(group) {
    if (!this.means.has(group)) this.means.set(group, meansInside(group, this.map, this.photo));
    return this.means.get(group);
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

  // The region at a place; of windows that overlap, the one whose middle is nearest.
  regionAt(y, x) {
    const group = this.pointed;
    if (group.cells) return { group, region: group.cells[y * this.photo.width + x] };
    let [best, found] = [Infinity, null];
    for (let region = 0, i = 0; region < group.count; region += 1, i += 4) {
      const [top, left, tall, wide] = group.boxes.subarray(i, i + 4);
      if (y < top || y >= top + tall || x < left || x >= left + wide) continue;
      const distance = (top + tall / 2 - y - 0.5) ** 2 + (left + wide / 2 - x - 0.5) ** 2;
      if (distance < best) [best, found] = [distance, { group, region }];
    }
    return found;
  }

  select(found, place = null) {
    this.selected = found && { ...found, place: place || insideOf(this, found) };
  }

  // After a choice, the region at the same place is looked at.
  keepSelected() {
    const { y, x } = this.selected.place;
    this.select(this.regionAt(Math.floor(y), Math.floor(x)), this.selected.place);
  }

  // Everything that is told of a region: the map inside it, and the answer to each question.
  describe({ group, region }) {
    return {
      group,
      region,
      box: boxOf({ group, region }),
      value: this.meansOf(group)[region],
      parts: group.parts
        .filter((part) => this.contexts.includes(part.context))
        .map((part) => this.describePart(group, part, region)),
    };
  }

  describePart(group, part, region) {
    const { first, second } = this.choice;
    const both = (place) => predictions(group, part, region, place, this.measure);
    return {
      part,
      context: part.context,
      value: partValues(group, part, this.question, region)[0],
      error: standardError(group, part, this.question, region),
      first: both(first),
      second: second === null ? null : both(second),
    };
  }
}

function contextsOf(groups) {
  return [...new Set(groups.flatMap((group) => group.parts.map((part) => part.context)))];
}

function middle({ top, left, height, width }) {
  return { y: top + height / 2, x: left + width / 2 };
}
