// A close look at one region: what is there, what the model was shown instead, and what it said.

class Detail {
  constructor(view) {
    this.view = view;
  }

  redraw() {
    const { selected } = this.view;
    byId("hint").hidden = Boolean(selected);
    byId("told").hidden = !selected;
    if (!selected) return;
    const told = this.view.describe(selected);
    byId("where").textContent = `${placeWords(told.box, this.view.photo)}, one of ${told.group.title}`;
    const kind = told.value < 0 ? "against" : "for";
    byId("answers").className = told.value === 0 ? "" : kind;
    byId("answers").replaceChildren(
      ...closeWords(this.view, told).map((words) => {
        const [question, answer] = words.split(/: (.*)/s);
        return element("li", {}, element("span", {}, `${question}:`), ` ${typeset(answer)}`);
      }),
    );
    byId("sentence").textContent = evidenceSentence(this.view, told);
    byId("looks").replaceChildren(...this.looks(told));
  }

  // The region in the photo, and what the model was shown in each context.
  looks(told) {
    const frame = surroundings(told.box, this.view.photo);
    const pictures = [this.look("In the photo", frame, told, () => {})];
    for (const { part } of told.parts) {
      const own = this.view.header.words.contexts[part.context];
      const words = part.drawn > 1 ? own.draw : own.picture;
      if (part.fills || part.filled !== undefined) {
        pictures.push(this.look(words, frame, told, (context) => this.fill(context, part, told)));
      } else if (part.nothing !== undefined) {
        pictures.push(
          this.look(words, frame, told, (context) => this.alone(context, part, told)),
        );
      }
    }
    return pictures;
  }

  look(words, frame, told, change) {
    const scale = 320 / frame.width;
    const canvas = layer(320, Math.round(frame.height * scale), (context) => {
      context.imageSmoothingQuality = "high";
      context.scale(scale, scale);
      context.translate(-frame.left, -frame.top);
      context.drawImage(this.view.images.photo, 0, 0);
      context.save();
      change(context);
      context.restore();
      const path = regionPath(this.view, told, this.view.photo.width);
      outline(context, path, 3.2 / scale, "#111");
    });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", words);
    return element("figure", {}, canvas, element("figcaption", {}, words));
  }

  fill(context, part, { group, region, box }) {
    if (part.filled !== undefined) {
      const { width, height } = this.view.photo;
      context.clip(areaPath(this.view, { group, region }));
      context.drawImage(this.view.images.sheets.get(part.filled), 0, 0, width, height);
      return;
    }
    const [tall, wide] = part.fills.tile;
    const row = Math.floor(region / part.fills.columns);
    const column = region % part.fills.columns;
    const sheet = this.view.images.sheets.get(part.fills.image);
    // A little inside the tile, where its neighbours do not show.
    const inset = Math.min(tall, wide) > 4 ? 0.5 : 0;
    context.drawImage(
      sheet,
      column * wide + inset,
      row * tall + inset,
      wide - 2 * inset,
      tall - 2 * inset,
      box.left,
      box.top,
      box.width,
      box.height,
    );
  }

  // The region alone, with soft edges, in what the model sees where nothing is seen.
  alone(context, part, { group, region, box }) {
    const { width, height } = this.view.photo;
    const seen = layer(width, height, (own) => {
      own.filter = `blur(${Math.min(box.width, box.height) / 16}px)`;
      own.fill(areaPath(this.view, { group, region }));
      own.filter = "none";
      own.globalCompositeOperation = "source-in";
      own.drawImage(this.view.images.photo, 0, 0);
    });
    context.drawImage(this.view.images.sheets.get(part.nothing), 0, 0, width, height);
    context.drawImage(seen, 0, 0);
  }
}

// The region with half its size around it, inside the photo.
function surroundings({ top, left, height, width }, photo) {
  const side = Math.max(height, width, 8) * 2;
  const [tall, wide] = [Math.min(side, photo.height), Math.min(side, photo.width)];
  return {
    top: Math.min(Math.max(top + height / 2 - tall / 2, 0), photo.height - tall),
    left: Math.min(Math.max(left + width / 2 - wide / 2, 0), photo.width - wide),
    height: tall,
    width: wide,
  };
}

// What a region covers, as a path to fill or to clip.
function areaPath(view, found) {
  const path = new Path2D();
  const { width } = view.photo;
  const { top, left, height: tall, width: wide } = boxOf(found);
  if (found.group.cells) {
    for (const pixel of pixelsOf(found, view.photo)) path.rect(pixel % width, Math.floor(pixel / width), 1, 1);
  } else path.rect(left, top, wide, tall);
  return path;
}
