// The groups of an atlas, each with its examples.

function example({ photo, bits, link, crop }, arrays) {
  const blob = new Blob([arrays[crop]], { type: "image/jpeg" });
  const words = `${typeset(signedWords(bits, "bits"))}, ${photo.split("/").pop()}`;
  const image = element("img", { src: URL.createObjectURL(blob), alt: words, width: 96, height: 96 });
  const parts = [image, element("span", { class: "words", dir: "auto", title: photo }, words)];
  const address = link && pageAddress(link);
  const made = address ? element("a", { href: address }, ...parts) : element("span", {}, ...parts);
  return element("li", {}, made);
}

function group(one, all, arrays) {
  const kind = one.bits > 0 ? "for" : "against";
  const shown = one.examples.length;
  const spread = one.photos > 1 ? ` \u00b1 ${one.spread.toFixed(2)}` : "";
  const crops = shown < one.regions ? `${shown} of ${counted(one.regions, "crop")} shown` : counted(shown, "crop");
  return element(
    "li",
    {},
    element(
      "p",
      { class: "sum" },
      element("strong", { class: kind }, `${typeset(signedWords(one.bits, "bits"))}${spread} bits`),
      element("span", {}, nameElement(one.name)),
      element("span", {}, `in ${one.photos} of ${counted(all, "photo")} (${percent(one.photos / all)}), ${crops}`),
    ),
    element("ul", { class: "crops" }, ...one.examples.map((region) => example(region, arrays))),
  );
}

async function start() {
  const { header, arrays } = await readBlock("values");
  document.title = `${header.label}: what speaks for it, and what against it`;
  byId("title").replaceChildren(nameElement(header.label));
  byId("lead").textContent =
    `${counted(header.photos, "photo")}: ${counted(header.groups.length, "group")} of similar regions; ` +
    `${counted(header.left, "region")} in no group.`;
  for (const [kind, sign] of [["for", 1], ["against", -1]]) {
    const groups = header.groups.filter(({ bits }) => sign * bits > 0);
    byId(kind).replaceChildren(...groups.map((one) => group(one, header.photos, arrays)));
    byId(`${kind}-none`).hidden = groups.length > 0;
  }
}

run(start);
