// A small template language: {{path}} escapes, {{{path}}} does not, {{#path}}…{{/}}
// repeats over a list or shows what is true. Compiled to closures, then rendered.
const escapes = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escape = (s) => String(s).replace(/[&<>"]/g, (c) => escapes[c]);
const look = (path) => {
  const keys = path.split(".");
  return (scopes) => {
    for (let i = scopes.length - 1; i >= 0; i--) {
      let v = scopes[i];
      for (const k of keys) v = v?.[k];
      if (v !== undefined) return v;
    }
    return "";
  };
};

function compile(source) {
  const tokens = source.split(/(\{\{\{?[^}]*\}?\}\})/);
  let at = 0;
  const block = () => {
    const parts = [];
    while (at < tokens.length) {
      const token = tokens[at++];
      if (token === "{{/}}") break;
      if (token.startsWith("{{#")) {
        const value = look(token.slice(3, -2));
        const body = block();
        parts.push((scopes) => {
          const v = value(scopes);
          const items = Array.isArray(v) ? v : v ? [v] : [];
          return items.map((item) => body([...scopes, item])).join("");
        });
      } else if (token.startsWith("{{{")) {
        parts.push(look(token.slice(3, -3)));
      } else if (token.startsWith("{{")) {
        const value = look(token.slice(2, -2));
        parts.push((scopes) => escape(value(scopes)));
      } else {
        parts.push(() => token);
      }
    }
    return (scopes) => parts.map((p) => p(scopes)).join("");
  };
  return block();
}

compile(input.template)([input.data]);
