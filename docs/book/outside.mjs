// A preprocessor of mdBook: a link to a file of the repository that is no chapter of the book would
// lead nowhere. Such a link becomes its text and, if that does not say it, the path of the file.
import path from 'node:path';

if (process.argv[2] === 'supports') process.exit(0);

let input = '';
for await (const text of process.stdin) input += text;
const [, book] = JSON.parse(input);

const chapters = [];
function collect(items) {
  for (const { Chapter: chapter } of items) {
    if (!chapter) continue;
    chapters.push(chapter);
    collect(chapter.sub_items);
  }
}
collect(book.items ?? book.sections);
// mdBook has renamed README.md to index.md by now, if it is a chapter; links still say README.md.
const known = new Set(chapters.flatMap(({ path: page, source_path: source }) => [page, source]));

function outside(page, text, target) {
  const [file] = target.split('#');
  if (file === '' || /^[a-z]+:/.test(target)) return null;
  const inDocs = path.normalize(path.join(path.dirname(page), file));
  if (known.has(inDocs)) return null;
  const inRepository = path.normalize(path.join('docs', inDocs)).replace(/\/$/, '');
  const plain = text.replaceAll('`', '');
  return inRepository.endsWith(plain) ? `\`${inRepository}\`` : `${text} (\`${inRepository}\`)`;
}

for (const chapter of chapters.filter(({ source_path: page }) => page)) {
  // Links may be broken over lines, so the whole prose is looked at; programs are left alone.
  const parts = chapter.content.split(/(^\s*```[\s\S]*?^\s*```[^\n]*$)/m);
  chapter.content = parts.map((part, index) => (index % 2 === 1 ? part
    : part.replaceAll(/\[([^\]]*)\]\(([^)\s]+)\)/g, (whole, text, target) => outside(chapter.source_path, text, target) ?? whole))).join('');
}
process.stdout.write(JSON.stringify(book));
