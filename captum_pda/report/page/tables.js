// The strongest regions for and against, linked both ways with the picture.

class Tables {
  constructor(view, changed) {
    this.view = view;
    this.changed = changed;
  }

  redraw() {
    const rather = this.view.otherName;
    for (const kind of ["for", "against"]) {
      const words = [nameElement(this.view.className)];
      if (rather !== null) words.push(" rather than ", nameElement(rather));
      byId(`${kind}-title`).replaceChildren(`Speaks ${kind} `, ...words);
      const rows = this.view.listed[kind].map((found, place) => this.row(found, place, kind));
      byId(`${kind}-rows`).replaceChildren(...rows);
      byId(`${kind}-none`).hidden = rows.length > 0;
      byId(`${kind}-table`).hidden = rows.length === 0;
    }
    byId("ranked").hidden = this.view.regions.length < 2;
    for (const head of document.querySelectorAll(".unit")) head.textContent = this.view.measure.unit;
    this.mark();
  }

  row(found, place, kind) {
    const told = this.view.describe(found);
    const seen = told.parts.find((part) => part.context === "full") || told.parts[0];
    const look = () => {
      this.view.select(found);
      this.changed();
    };
    const number = `${kind === "for" ? "+" : MINUS}${place + 1}`;
    const made = element(
      "tr",
      { onpointerenter: look, onclick: look },
      element(
        "td",
        {},
        element(
          "button",
          {
            type: "button",
            class: `chip ${kind}`,
            "aria-label": `Look at number ${place + 1} ${kind}: ${spokenWords(this.view, found)}`,
            onfocus: look,
          },
          number,
        ),
      ),
      element("td", { class: `number ${kind}` }, valueWords(told.value, told.error)),
      element("td", {}, placeWords(told.box, this.view.photo)),
      element("td", {}, sizeWords(told.group)),
      element("td", { class: "number" }, predictionWords(seen.first.not, this.view.measure)),
    );
    made.found = found;
    return made;
  }

  // Shows which row is looked at.
  mark() {
    for (const row of document.querySelectorAll("#for-rows tr, #against-rows tr")) {
      if (isSame(row.found, this.view.selected)) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
    }
  }
}
