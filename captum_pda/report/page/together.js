// What pairs of regions say together: choose a region, see its partners.

const STRONGEST_LINE = 5; // pixels of the photo, of the strongest pair
const LISTED_PARTNERS = 5;

class Together {
  constructor(view, photo, arrays) {
    this.told = view.header.together;
    byId("together").hidden = !this.told;
    if (!this.told) return;
    this.size = view.photo;
    this.image = photo;
    this.owners = arrays[this.told.owners];
    this.chosen = this.told.pairs.length ? this.told.pairs[0].regions[0] : 0;
    byId("together-name").replaceChildren("For ", nameElement(this.told.name), ":");
    const canvas = byId("together-photo");
    [canvas.width, canvas.height] = [this.size.width, this.size.height];
    canvas.addEventListener("click", (event) => this.point(event));
    this.borders = this.told.places.map((_, number) => {
      const path = new Path2D();
      addBorder(path, (y, x) => this.owners[y * this.size.width + x] === number, { top: 0, left: 0, ...this.size }, [1, 1]);
      return path;
    });
    const options = this.told.places.map((_, number) => ({ value: number, words: String(number) }));
    choices(byId("together-regions"), "together-region", options, this.chosen, (number) => this.choose(number));
    this.choose(this.chosen);
  }

  point(event) {
    const { width, height } = this.size;
    const box = byId("together-photo").getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * width);
    const row = Math.floor(((event.clientY - box.top) / box.height) * height);
    const owner = this.owners[row * width + column];
    if (owner >= 0) {
      byId("together-regions").querySelectorAll("input")[owner].checked = true;
      this.choose(owner);
    }
  }

  choose(number) {
    this.chosen = number;
    const own = this.told.pairs.filter((pair) => pair.regions.includes(number));
    const other = (pair) => pair.regions.find((one) => one !== number);
    byId("together-lost").textContent = typeset(`Region ${number}: ${this.told.lost[number]}`);
    byId("together-partners").replaceChildren(
      ...own.slice(0, LISTED_PARTNERS).map((pair) =>
        element("li", {}, typeset(`with ${other(pair)}: ${pair.words}`)),
      ),
    );
    this.draw(own);
  }

  draw(own) {
    const { width, height } = this.size;
    const canvas = byId("together-photo");
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.globalAlpha = 1;
    context.fillStyle = "white";
    context.fillRect(0, 0, width, height);
    context.globalAlpha = 0.6;
    context.drawImage(this.image, 0, 0, width, height);
    context.globalAlpha = 1;
    for (const one of this.told.places.keys()) {
      if (one !== this.chosen) outline(context, this.borders[one], width / 224, "#777");
    }
    outline(context, this.borders[this.chosen], width / 112, "#b2182b");
    for (const pair of own.filter((one) => one.is_strong)) {
      const [from, to] = pair.regions.map((number) => this.told.places[number]);
      const line = STRONGEST_LINE * Math.abs(pair.share);
      const colour = this.told.colours[pair.share > 0 ? "cover" : "together"];
      for (const [style, extra] of [["white", 2], [colour, 0]]) {
        context.strokeStyle = style;
        context.lineWidth = (line + extra) * (width / 224);
        context.beginPath();
        context.moveTo(...from);
        context.lineTo(...to);
        context.stroke();
      }
    }
    context.font = `${Math.max(8, Math.round(width / 20))}px sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    this.told.places.forEach(([x, y], number) => {
      context.lineWidth = 3;
      context.strokeStyle = "white";
      context.strokeText(String(number), x, y);
      context.fillStyle = number === this.chosen ? "#b2182b" : "black";
      context.fillText(String(number), x, y);
    });
    canvas.setAttribute("aria-label", `The regions, with lines from region ${this.chosen} to its partners`);
  }
}
