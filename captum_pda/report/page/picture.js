// The photo with its map over it, and the region that is looked at.

class Picture {
  constructor(view, photo, changed) {
    this.view = view;
    this.changed = changed;
    this.pinned = false;
    this.outlined = true;
    this.stage = byId("stage");
    this.canvas = byId("picture");
    this.markers = byId("markers");
    const { width, height } = view.photo;
    this.stage.style.aspectRatio = `${width} / ${height}`;
    document.body.style.setProperty("--ratio", String(width / height));
    this.photo = layer(width, height, (context) => context.drawImage(photo, 0, 0));
    this.grey = layer(width, height, (context) => {
      context.drawImage(photo, 0, 0);
      const pixels = context.getImageData(0, 0, width, height);
      for (let i = 0; i < pixels.data.length; i += 4) {
        const [red, green, blue] = pixels.data.subarray(i, i + 3);
        // Between dark and light grey, so that colours stand out from black and from white.
        pixels.data.fill(0.15 * 255 + (0.8 * (red + green + blue)) / 3, i, i + 3);
      }
      context.putImageData(pixels, 0, 0);
    });
    this.listen();
  }

  listen() {
    const { stage } = this;
    stage.addEventListener("pointermove", (event) => this.pointed(event));
    stage.addEventListener("pointerdown", (event) => this.pointed(event));
    stage.addEventListener("click", (event) => {
      if (event.pointerType === "touch" || event.target !== this.canvas) return;
      this.pinned = !this.pinned;
      this.pointed(event, true);
    });
    stage.addEventListener("keydown", (event) => this.pressed(event));
    new ResizeObserver(() => this.draw()).observe(stage);
  }

  pointed(event, always = false) {
    if (event.target !== this.canvas || (this.pinned && !always)) return;
    const frame = this.canvas.getBoundingClientRect();
    const { width, height } = this.view.photo;
    const x = ((event.clientX - frame.left) / frame.width) * width;
    const y = ((event.clientY - frame.top) / frame.height) * height;
    this.lookAt(y, x, false);
  }

  pressed(event) {
    const { width, height } = this.view.photo;
    const step = event.shiftKey ? 1 : Math.max(1, Math.round(Math.max(width, height) / 28));
    const moves = {
      ArrowUp: [-step, 0],
      ArrowDown: [step, 0],
      ArrowLeft: [0, -step],
      ArrowRight: [0, step],
    };
    if (event.key === "Escape") {
      this.pinned = false;
      this.changed(false);
    } else if (moves[event.key] && event.target === this.stage) {
      const place = this.view.selected ? this.view.selected.place : { y: height / 2, x: width / 2 };
      this.lookAt(place.y + moves[event.key][0], place.x + moves[event.key][1], true);
      event.preventDefault();
    } else if (event.key === "Home" || event.key === "End") {
      const [found] = event.key === "Home" ? this.view.listed.for : this.view.listed.against;
      if (found) this.view.select(found);
      this.changed(Boolean(found));
      event.preventDefault();
    }
  }

  // Looks at the region at a place, which is kept inside the photo.
  lookAt(y, x, aloud) {
    const { width, height } = this.view.photo;
    const place = { y: within(y, height), x: within(x, width) };
    this.view.select(this.view.regionAt(Math.floor(place.y), Math.floor(place.x)), place);
    this.changed(aloud);
  }

  // Draws the map anew after a choice.
  redraw() {
    this.map = this.mapLayer(this.view.map);
    this.canvas.setAttribute("aria-label", pictureWords(this.view));
    this.markers.replaceChildren(
      ...this.view.listed.for.map((found, place) => this.marker(found, place, "+")),
      ...this.view.listed.against.map((found, place) => this.marker(found, place, MINUS)),
    );
    this.draw();
  }

  mapLayer(map) {
    const { scale, choice, photo, header } = this.view;
    const pixels = mapPixels(map, scale, choice.threshold, photo, header.colours);
    return layer(photo.width, photo.height, (context) => context.putImageData(pixels, 0, 0));
  }

  draw() {
    const frame = this.stage.getBoundingClientRect();
    const dense = window.devicePixelRatio || 1;
    this.canvas.width = Math.max(1, Math.round(frame.width * dense));
    this.canvas.height = Math.max(1, Math.round(frame.height * dense));
    this.paint(this.canvas.getContext("2d"), this.canvas.width, this.canvas.height, dense);
    this.stage.classList.toggle("pinned", this.pinned);
    const place = this.view.selected && this.view.selected.place;
    const cursor = byId("cursor");
    cursor.hidden = !place;
    if (place) {
      cursor.style.left = `${(100 * place.x) / this.view.photo.width}%`;
      cursor.style.top = `${(100 * place.y) / this.view.photo.height}%`;
    }
    for (const marker of this.markers.children) {
      const same = isSame(marker.found, this.view.selected);
      marker.classList.toggle("chosen", same);
      marker.setAttribute("aria-pressed", String(same));
    }
  }

  paint(context, width, height, dense) {
    this.print(context, width, height, this.map);
    const { boxes, colours } = this.view.header;
    const box = boxes[this.view.choice.first];
    if (box) {
      const [left, top, right, bottom] = box.map((place) => (place * width) / this.view.photo.width);
      const path = new Path2D();
      path.rect(left, top, right - left, bottom - top);
      outline(context, path, 2 * dense, "#e8b400");
    }
    if (this.outlined) {
      for (const kind of ["for", "against"]) {
        for (const found of this.view.listed[kind]) {
          outline(context, regionPath(this.view, found, width), 2 * dense, colours[kind]);
        }
      }
    }
    if (this.view.selected) {
      outline(context, regionPath(this.view, this.view.selected, width), 2.8 * dense, "#111");
    }
  }

  // The photo in grey with a map over it; with less opacity the photo's own colours.
  print(context, width, height, map) {
    const { opacity } = this.view.choice;
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    context.drawImage(this.photo, 0, 0, width, height);
    context.globalAlpha = Math.min(1, 2 * opacity);
    context.drawImage(this.grey, 0, 0, width, height);
    context.globalAlpha = opacity;
    // Smoothing would mix evidence for and against into evidence for nothing.
    context.imageSmoothingEnabled = false;
    context.drawImage(map, 0, 0, width, height);
    context.globalAlpha = 1;
  }

  marker(found, place, sign) {
    const { y, x } = insideOf(this.view, found);
    const { width, height } = this.view.photo;
    const against = sign === MINUS;
    const words = `${against ? "Against" : "For"}, number ${place + 1}: ${spokenWords(this.view, found)}`;
    const made = element(
      "button",
      {
        type: "button",
        class: against ? "marker against" : "marker for",
        "aria-label": words,
        onfocus: () => this.chosen(found),
        onpointerenter: () => this.pinned || this.chosen(found),
        onclick: () => this.chosen(found),
      },
      `${sign}${place + 1}`,
    );
    made.found = found;
    made.style.setProperty("--x", `${(100 * x) / width}%`);
    made.style.setProperty("--y", `${(100 * y) / height}%`);
    return made;
  }

  chosen(found) {
    this.view.select(found);
    this.changed(false);
  }
}

function layer(width, height, draw) {
  const canvas = element("canvas", { width, height });
  draw(canvas.getContext("2d", { willReadFrequently: true }));
  return canvas;
}

function within(value, size) {
  return Math.min(Math.max(value, 0), size - 1e-6);
}

function isSame(a, b) {
  return Boolean(a && b && a.group === b.group && a.region === b.region);
}

// A region's outline, on a picture of some width: its box, or its own border.
function regionPath(view, found, wide) {
  const { width } = view.photo;
  const path = new Path2D();
  const own = found.group.cells || found.lost?.size ? new Set(pixelsOf(found, view.photo)) : null;
  const { top, left, height: tall, width: across } = boxOf(found);
  const scale = wide / width;
  if (own) addBorder(path, (y, x) => own.has(y * width + x), boxOf(found), [scale, scale]);
  else path.rect(left * scale, top * scale, across * scale, tall * scale);
  return path;
}

// A place inside a region, near its middle: the pixel of it that is nearest to its mean.
function insideOf(view, found) {
  if (!found.group.cells) return middle(boxOf(found));
  const { width } = view.photo;
  const pixels = pixelsOf(found, view.photo).map((pixel) => [Math.floor(pixel / width), pixel % width]);
  const [my, mx] = [0, 1].map((axis) => pixels.reduce((sum, at) => sum + at[axis], 0) / pixels.length);
  const far = ([y, x]) => (y - my) ** 2 + (x - mx) ** 2;
  const [y, x] = pixels.reduce((a, b) => (far(b) < far(a) ? b : a));
  return { y: y + 0.5, x: x + 0.5 };
}

function pictureWords(view) {
  const rather = view.otherName === null ? "" : ` rather than ${isolated(view.otherName)}`;
  return (
    `The photo ${isolated(view.header.title)} with its evidence for ${isolated(view.className)}${rather}, ` +
    `from ${signed(-view.scale, view.scale)} to ${signed(view.scale, view.scale)} ${view.measure.unit}`
  );
}
