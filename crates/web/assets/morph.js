// Markup in place of other markup: what is the same stays the same element, and with it focus, selection and place.

// What the reader or a script has set stays, whatever the markup says.
const kept = new Set(["open", "hidden", "tabindex"]);

/** Markup as nodes that are nowhere yet. */
export function parsed(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

/** Makes the children of an element look like those of another, which gives up the ones that are needed. */
export function morph(element, wanted) {
  const has = [...element.childNodes], gets = [...wanted.childNodes];
  gets.forEach((next, i) => {
    const there = has[i];
    if (!there) element.append(next);
    else if (there.nodeName !== next.nodeName) there.replaceWith(next);
    else if (next.nodeType === Node.TEXT_NODE) write(there, next.data);
    else become(there, next);
  });
  has.slice(gets.length).forEach((node) => node.remove());
}

/** One element as another, with its attributes. */
export function become(element, wanted) {
  for (const { name } of [...element.attributes]) {
    if (!kept.has(name) && !wanted.hasAttribute(name)) element.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  }
  morph(element, wanted);
}

/** The same text written again would be laid out again. */
export function write(node, text) {
  if (node.data !== text) node.data = text;
}

/** Text as all that an element has. */
export function say(element, text) {
  const only = element.firstChild;
  if (only?.nodeType === Node.TEXT_NODE && !only.nextSibling) write(only, text);
  else element.textContent = text;
}
