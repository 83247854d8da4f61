// Puts the page together: values in, picture, detail, tables and controls out.

let view = null; // what is looked at

async function start() {
  const block = await readBlock("values");
  const { header, arrays } = block;
  const numbers = new Set();
  for (const { groups } of header.methods) {
    for (const part of groups.flatMap((group) => group.parts)) {
      if (part.fills) numbers.add(part.fills.image);
      if (part.filled !== undefined) numbers.add(part.filled);
      if (part.nothing !== undefined) numbers.add(part.nothing);
    }
  }
  const sheets = new Map();
  for (const number of numbers) sheets.set(number, await readImage(arrays[number]));
  const photo = await readImage(arrays[header.photo.image]);
  view = new View(block, { photo, sheets });

  const looked = (aloud) => {
    picture.draw();
    detail.redraw();
    tables.mark();
    if (aloud && view.selected) byId("spoken").textContent = typeset(spokenWords(view, view.selected));
  };
  const picture = new Picture(view, photo, looked);
  const detail = new Detail(view);
  const tables = new Tables(view, () => looked(false));
  const test = new MapTest(view, photo);
  new Together(view, photo, arrays);
  const chosen = () => {
    picture.redraw();
    detail.redraw();
    tables.redraw();
    controls.redraw();
    test.redraw();
    const other = view.otherName === null ? "" : ` rather than ${isolated(view.otherName)}`;
    byId("spoken").textContent = `Shown: evidence for ${isolated(view.className)}${other}.`;
  };
  const controls = new Controls(view, picture, chosen);

  showHeader(header);
  byId("save").addEventListener("click", async () => {
    saveFile(await savedView(view, picture), savedName(view));
  });
  const [strong] = view.listed.for.concat(view.listed.against);
  if (strong) view.select(strong);
  chosen();
}

run(start);
