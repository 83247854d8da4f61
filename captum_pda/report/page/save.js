// The view as a PNG: the picture, what it shows, and its scale.

const SAVED = { width: 1200, margin: 48, ramp: 22 };

function savedView(view, picture) {
  const { width, margin, ramp } = SAVED;
  const inner = width - 2 * margin;
  const tall = Math.round((inner * view.photo.height) / view.photo.width);
  const [head, foot] = [110, 120];
  const paper = layer(width, head + tall + foot, (context) => {
    context.fillStyle = "#ffffff";
    context.fillRect(0, 0, width, head + tall + foot);
    const shot = layer(inner, tall, (own) => picture.paint(own, inner, tall, 2));
    context.drawImage(shot, margin, head);
    context.fillStyle = "#1b1c1f";
    context.font = "600 34px system-ui, sans-serif";
    context.fillText(savedTitle(view), margin, 56, inner);
    context.font = "22px system-ui, sans-serif";
    context.fillStyle = "#55585f";
    context.fillText(savedChoices(view), margin, 90, inner);
    const top = head + tall + 24;
    for (let x = 0; x < inner; x += 1) {
      const value = (2 * x) / (inner - 1) - 1;
      const hidden = Math.abs(value * view.scale) < view.choice.threshold;
      context.fillStyle = `rgb(${(hidden ? [255, 255, 255] : colourOf(value, view.header.colours)).join(" ")})`;
      context.fillRect(margin + x, top, 1, ramp);
    }
    context.strokeStyle = "#8a8d94";
    context.strokeRect(margin + 0.5, top + 0.5, inner - 1, ramp - 1);
    context.fillStyle = "#55585f";
    for (const share of TICKS) {
      context.textAlign = share === -1 ? "left" : share === 1 ? "right" : "center";
      const text = signed(share * view.scale, view.scale);
      context.fillText(text, margin + (inner * (share + 1)) / 2, top + ramp + 28);
    }
    context.textAlign = "center";
    context.fillText(`against   ${view.measure.label}   for`, width / 2, top + ramp + 60);
  });
  return new Promise((resolve) => paper.toBlob(resolve, "image/png"));
}

function savedTitle(view) {
  const other = view.otherName === null ? "" : ` rather than ${isolated(view.otherName)}`;
  return `What speaks for ${isolated(view.className)}${other}`;
}

function savedChoices(view) {
  const { choice } = view;
  const method = view.methods[choice.method];
  const only = method.groups.length === 1 ? 0 : choice.group;
  const size = only === null ? "all sizes" : method.groups[only].title;
  const { all, contexts } = view.header.words;
  const isAll = choice.context === null && view.offered.length > 1;
  const question = isAll ? all : contexts[view.contexts[0]].choice;
  const words = [isolated(view.header.title), method.name, size, question.toLowerCase()];
  return words.filter(Boolean).join(" \u00b7 ");
}

function savedName(view) {
  const plain = `${view.header.title} ${view.className}`.replace(/[^\p{L}\p{N}]+/gu, "_");
  return `${plain.slice(0, 80)}.png`;
}
