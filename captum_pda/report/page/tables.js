// The strongest regions for and against, linked both ways with the picture.

class Tables {
  constructor(view, changed) {
    this.view = view;
    this.changed = changed;
  }

  redraw() {
    const { className, otherName, listed, pointed } = this.view;
    for (const kind of ["for", "against"]) {
      showList(kind, className, otherName, listed[kind], (found, place) => this.row(found, place, kind));
    }
    byId("ranked").textContent = `Of ${pointed.title}, in the order of the map inside them.`;
    this.mark();
  }

  row(found, place, kind) {
    const look = () => {
      this.view.select(found);
      this.changed();
    };
    const where = placeWords(boxOf(found), this.view.photo);
    const made = regionRow(kind, place, found.answers, where, look);
    made.addEventListener("pointerenter", look);
    made.addEventListener("focusin", look);
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
