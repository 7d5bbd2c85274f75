// Change an element in place so that it equals the server's current rendering, without disturbing the viewer.
// Children with the same `data-key` (or id) stay the same element, so focus, selection and scroll position are kept.
// It must not touch a subtree with `data-keep`, whether <details> or <dialog> is open, or a field that is being edited.

/** @param {Node} node */
const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.dataset?.key || node.id || null : null);

/** @param {Node} a @param {Node} b */
const isSame = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

/**
 * @param {Element} current an element of the page
 * @param {Element} target the element as it should be
 */
export function morph(current, target) {
  if (current.hasAttribute("data-keep")) return;
  morphAttributes(current, target);
  morphChildren(current, target);
}

/** @param {Element} element */
const opensItself = (element) => element.localName === "details" || element.localName === "dialog";

function morphAttributes(current, target) {
  for (const name of current.getAttributeNames()) {
    if (!target.hasAttribute(name) && !(name === "open" && opensItself(current))) current.removeAttribute(name);
  }
  for (const { name, value } of target.attributes) {
    if (name === "open" && opensItself(current)) continue;
    if (current.getAttribute(name) !== value) current.setAttribute(name, value);
  }
  morphField(current, target);
}

function morphField(current, target) {
  const isField = current.localName === "input" || current.localName === "textarea" || current.localName === "select";
  if (!isField || current === document.activeElement || current.dataset.dirty !== undefined) return;
  if (current.type === "checkbox" || current.type === "radio") current.checked = target.hasAttribute("checked");
  else if (current.localName === "input") {
    const value = target.getAttribute("value") ?? "";
    if (current.value !== value) current.value = value;
  }
}

function morphChildren(current, target) {
  const keyed = new Map();
  for (const child of current.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child);
  let at = current.firstChild;
  for (const wanted of Array.from(target.childNodes)) {
    const found = findMatch(wanted, at, keyed);
    if (!found) {
      current.insertBefore(document.importNode(wanted, true), at);
      continue;
    }
    if (found === at) at = at.nextSibling;
    else move(current, found, at);
    if (found.nodeType === Node.ELEMENT_NODE) morph(found, wanted);
    else if (found.nodeValue !== wanted.nodeValue) found.nodeValue = wanted.nodeValue;
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/** Return the child that becomes the wanted one: the one with its key, or the next one without a key. */
function findMatch(wanted, at, keyed) {
  const key = keyOf(wanted);
  if (key) {
    const known = keyed.get(key);
    if (!known || !isSame(known, wanted)) return null;
    keyed.delete(key);
    return known;
  }
  let candidate = at;
  while (candidate && keyOf(candidate)) candidate = candidate.nextSibling;
  return candidate && isSame(candidate, wanted) ? candidate : null;
}

function move(parent, node, before) {
  if (parent.moveBefore) parent.moveBefore(node, before);
  else parent.insertBefore(node, before);
}
