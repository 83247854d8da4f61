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
    }
    byId("ranked").textContent = `Of ${this.view.pointed.title}, in the order of the map inside them.`;
    this.mark();
  }

  row(found, place, kind) {
    const look = () => {
      this.view.select(found);
      this.changed();
    };
    const where = placeWords(boxLeft(found, this.view.photo), this.view.photo);
    const made = element(
      "li",
      { onpointerenter: look, onclick: look },
      element(
        "button",
        {
          type: "button",
          class: `chip ${kind}`,
          "aria-label": `Look at number ${place + 1} ${kind}: ${where}; ${found.answers.join("; ")}`,
          onfocus: look,
        },
        `${kind === "for" ? "+" : MINUS}${place + 1}`,
      ),
      element(
        "div",
        {},
        ...found.answers.map((answer) => element("p", { class: "answer" }, typeset(answer))),
        element("p", { class: "where" }, where),
      ),
    );
    made.found = found;
    return made;
  }

  // Shows which row is looked at.
  mark() {
    for (const row of document.querySelectorAll("#for-rows li, #against-rows li")) {
      if (isSame(row.found, this.view.selected)) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
    }
  }
}
