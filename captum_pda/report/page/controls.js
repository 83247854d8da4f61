// What can be chosen: class, pair, method, size, context, opacity, threshold and scale.

const COMPARED = 6; // how many classes are shown side by side

class Controls {
  constructor(view, picture, chosen) {
    this.view = view;
    this.picture = picture;
    this.choose = (changes) => {
      view.choose(changes);
      chosen();
    };
    byId("opacity").addEventListener("input", (event) => {
      this.choose({ opacity: event.target.valueAsNumber / 100 });
    });
    byId("threshold").addEventListener("input", (event) => {
      this.choose({ threshold: (event.target.valueAsNumber / 100) * view.scale });
    });
    byId("hold").addEventListener("change", (event) => {
      this.choose({ held: event.target.checked ? view.scale : null });
    });
    byId("numbers").addEventListener("change", (event) => {
      byId("markers").hidden = !event.target.checked;
      picture.outlined = event.target.checked;
      picture.draw();
    });
    showClasses(view.header, view.choice.first, (first) => this.choose({ first }));
    this.others();
    this.methods();
  }

  others() {
    const { labels } = this.view.header;
    const select = byId("other");
    byId("other-field").hidden = labels.length < 2 || !this.view.measure.contrasts;
    const options = labels.map((name, place) => element("option", { value: String(place) }, name));
    select.replaceChildren(element("option", { value: "" }, "any other class"), ...options);
    select.addEventListener("change", () => {
      this.choose({ second: select.value === "" ? null : Number(select.value) });
    });
  }

  methods() {
    const { methods } = this.view;
    byId("method-field").hidden = methods.length < 2;
    choices(
      byId("method"),
      "method",
      methods.map(({ name }, value) => ({ value, words: name })),
      this.view.choice.method,
      (method) => this.choose({ method, group: null, context: null }),
    );
  }

  redraw() {
    const { choice, measure, scale } = this.view;
    const { groups } = this.view.methods[choice.method];
    byId("size-field").hidden = groups.length < 2;
    const sizes = groups
      .map((group, value) => ({ value, words: group.title, isLayer: group.depth !== "input", count: group.count }))
      .sort((a, b) => a.isLayer - b.isLayer || a.count - b.count);
    const everything = { value: null, words: "all together" };
    this.offer("size", [everything, ...sizes], choice.group, (group) => this.choose({ group }));
    const contexts = this.view.offered.map((value) => ({ value, words: this.view.header.words.contexts[value].choice }));
    byId("context-field").hidden = contexts.length < 2;
    const both = { value: null, words: this.view.header.words.all };
    const change = (context) => this.choose({ context });
    this.offer("context", [both, ...contexts], choice.context, change);
    byId("other").value = choice.second === null ? "" : String(choice.second);
    for (const option of byId("other").options) option.disabled = option.value === String(choice.first);
    byId("threshold").value = String((100 * choice.threshold) / scale);
    byId("opacity").value = String(100 * choice.opacity);
    byId("opacity-value").textContent = `${Math.round(100 * choice.opacity)}%`;
    const bound = withUnit(sized(choice.threshold, scale), measure);
    byId("threshold-value").textContent = bound;
    byId("threshold").setAttribute("aria-valuetext", bound);
    this.legend();
    this.compare();
  }

  // The maps of the first classes side by side, on the scale of the large one.
  compare() {
    const { header, photo, choice } = this.view;
    const some = header.labels.slice(0, COMPARED);
    byId("compared").hidden = some.length < 2;
    byId("compared").replaceChildren(
      ...some.map((name, first) => {
        const map = this.picture.mapLayer(this.view.mapFor({ first, second: null }));
        const wide = Math.min(photo.width, 220);
        const tall = Math.round((wide * photo.height) / photo.width);
        const canvas = layer(wide, tall, (context) => this.picture.print(context, wide, tall, map));
        return element(
          "button",
          {
            type: "button",
            "aria-pressed": String(choice.first === first && choice.second === null),
            onclick: () => this.chooseClass(first),
          },
          canvas,
          nameElement(name),
        );
      }),
    );
  }

  chooseClass(first) {
    this.choose({ first, second: null });
    byId("compared").children[first].focus();
  }

  // Radio buttons are made anew only where the choice differs, so that focus stays.
  offer(id, options, chosen, change) {
    const host = byId(id);
    const words = JSON.stringify(options);
    if (host.dataset.options === words) {
      const place = options.findIndex(({ value }) => value === chosen);
      host.querySelectorAll("input")[place].checked = true;
      return;
    }
    host.dataset.options = words;
    choices(host, id, options, chosen, change);
  }

  legend() {
    const { scale, choice, methods, header } = this.view;
    byId("classes").querySelectorAll("input")[choice.first].checked = true;
    const [one, other] = [choice.first, choice.second].map((place) => (
      { name: isolated(header.labels[place]), value: predictionWords(header.predictions[place], header.measure) }));
    const total = choice.second === null
      ? methods[choice.method].totals[choice.first]
      : `${one.name} : ${other.name} is ${one.value} : ${other.value} with everything seen`;
    showScale({ scale, hidden: choice.threshold / scale, words: scaleWords(this.view), total }, header);
    byId("hold").checked = choice.held !== null;
  }
}
