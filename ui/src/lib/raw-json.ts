// JSON as the text that it is: a payload is shown with its own digits and escapes, which parsing would change.

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/** The text of one member of the object that a document is. */
export function member(document: string, name: string): string | undefined {
  let depth = 0;
  let key = "";
  let start = -1;
  let isValue = false;
  for (const match of document.matchAll(TOKEN)) {
    const token = match[0];
    if (depth === 1 && (token === "," || token === "}")) {
      if (start >= 0) return document.slice(start, match.index).trim();
      isValue = false;
    }
    if (depth === 1 && isValue && key === name && start < 0) start = match.index;
    if (depth === 1 && !isValue && token.startsWith('"')) key = JSON.parse(token) as string;
    if (depth === 1 && token === ":") isValue = true;
    if (token === "{" || token === "[") depth += 1;
    if (token === "}" || token === "]") depth -= 1;
  }
  return undefined;
}

/** The same text with line breaks and indents. */
export function indent(text: string): string {
  let depth = 0;
  let out = "";
  let last = "";
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const [token] of text.matchAll(TOKEN)) {
    if (token === "}" || token === "]") {
      depth -= 1;
      out += last === "{" || last === "[" ? token : line() + token;
    } else {
      if (last === "{" || last === "[" || last === ",") out += line();
      if (token === "{" || token === "[") depth += 1;
      out += token === ":" ? ": " : token;
    }
    last = token;
  }
  return out;
}
