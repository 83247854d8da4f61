// Parts of the page, made without markup: texts stay texts.

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

// A name that was given, of any script and direction.
function nameElement(name) {
  return element("bdi", { class: "name" }, name);
}

// An address that leads to a page and runs nothing; null for any other.
function pageAddress(given) {
  try {
    const { protocol } = new URL(given, document.baseURI);
    return ["file:", "http:", "https:"].includes(protocol) ? given : null;
  } catch {
    return null;
  }
}

// One of several, as radio buttons that look like one bar.
function choices(host, name, options, chosen, change) {
  host.replaceChildren(
    ...options.map(({ value, words }, place) =>
      element(
        "label",
        {},
        element("input", {
          type: "radio",
          name,
          value: String(place),
          checked: value === chosen,
          onchange: () => change(value),
        }),
        element("span", {}, words),
      ),
    ),
  );
}

// Files of the page's own making, such as a PNG.
function saveFile(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// Fills the page, or says why it cannot be shown.
async function run(start) {
  try {
    await start();
    document.body.dataset.ready = "true";
  } catch (error) {
    byId("failed").hidden = false;
    byId("failed").textContent = `This page cannot be shown: ${error.message}`;
    throw error;
  }
}
