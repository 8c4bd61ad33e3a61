// Opens pages in headless Chromium and says what is wrong with them. Only what Node and Chromium
// bring: the DevTools protocol goes over a pipe, and pages come from a server on loopback.
//
//   node .ci/browser.mjs [--screenshots FOLDER] [--print EXPRESSION] PAGE|FOLDER|http://127.0.0.1:PORT/...
//
// Each page is loaded in light and in dark, 1280 and 390 pixels wide. Faults: an error
// on the console, an exception, a request off this machine or one that fails, a page that scrolls
// sideways, a diagram (class `mermaid`) that is no svg, a picture without a size.
// --print writes one line of JSON per page: the value of the expression in that page.
// Exit code: 0 sound, 1 faults (on stderr), 2 usage or no browser.
import { spawn } from 'node:child_process';
import { createReadStream, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';

const LOAD_MS = 30_000;
const SETTLE_MS = 15_000;
const WIDTHS = [1280, 390];
const AT_ONCE = 4;
const SHOT_HEIGHT = 2_400; // Chromium makes no picture of a very long page
const TYPES = { '.html': 'text/html; charset=utf-8', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml',
  '.png': 'image/png', '.json': 'application/json', '.woff2': 'font/woff2', '.txt': 'text/plain; charset=utf-8' };

function usage(text) {
  console.error(`browser: ${text}`);
  process.exit(2);
}

const options = { screenshots: null, print: null, targets: [] };
for (let words = process.argv.slice(2); words.length > 0;) {
  const word = words.shift();
  if (word === '--screenshots') options.screenshots = words.shift() ?? usage('--screenshots FOLDER');
  else if (word === '--print') options.print = words.shift() ?? usage('--print EXPRESSION');
  else if (word.startsWith('--')) usage(`there is no option ${word}`);
  else options.targets.push(/^http:\/\/127\.0\.0\.1:\d+\//.test(word) ? word : path.resolve(word));
}
if (options.targets.length === 0) usage('name a page or a folder');

function pagesIn(target) {
  if (target.startsWith('http:')) return [{ root: null, page: target }];
  if (!existsSync(target)) usage(`${target} is not there`);
  if (!statSync(target).isDirectory()) return [{ root: path.dirname(target), page: path.basename(target) }];
  const pages = readdirSync(target, { recursive: true }).filter((name) => name.endsWith('.html'));
  // What mdBook makes for printing, for the side bar and for addresses that do not exist is no page of its own.
  const own = pages.filter((name) => !/(^|\/)(print|toc|404)\.html$/.test(name));
  return own.sort().map((page) => ({ root: target, page }));
}
const pages = options.targets.flatMap(pagesIn);
if (pages.length === 0) usage('there are no pages');

// One server for all roots: the first part of a path is the number of its root.
const roots = [...new Set(pages.map(({ root }) => root).filter((root) => root !== null))];
const server = createServer((request, response) => {
  const [, number, ...rest] = decodeURIComponent(request.url.split('?')[0]).split('/');
  const root = roots[Number(number)];
  const file = root && path.join(root, ...rest);
  if (!file || !file.startsWith(root) || !existsSync(file) || !statSync(file).isFile()) {
    // Chromium asks for an icon of its own accord.
    response.writeHead(request.url === '/favicon.ico' ? 204 : 404).end();
    return;
  }
  response.writeHead(200, { 'content-type': TYPES[path.extname(file)] ?? 'application/octet-stream' });
  createReadStream(file).pipe(response);
});
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const origin = `http://127.0.0.1:${server.address().port}/`;

const profile = mkdtempSync(path.join(tmpdir(), 'zae-limiter-browser-'));
const program = process.env.CHROMIUM ?? '/usr/bin/chromium';
if (!existsSync(program)) usage(`${program} is not there: install Debian's chromium, or set CHROMIUM`);
const chromium = spawn(program, ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
  '--disable-background-networking', '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage',
  '--remote-debugging-pipe', `--user-data-dir=${profile}`, 'about:blank'],
{ stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });

let next = 0;
const waiting = new Map();
const listeners = new Set();
let buffered = '';
chromium.stdio[4].setEncoding('utf8').on('data', (text) => {
  const messages = (buffered + text).split('\0');
  buffered = messages.pop();
  for (const message of messages.map((message) => JSON.parse(message))) {
    const { resolve, reject } = waiting.get(message.id) ?? {};
    waiting.delete(message.id);
    if (message.error) reject?.(new Error(message.error.message));
    else if (message.id) resolve?.(message.result);
    else listeners.forEach((listener) => listener(message));
  }
});
function send(method, params = {}, sessionId = undefined) {
  const id = (next += 1);
  chromium.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`${method}: no answer in ${LOAD_MS} ms`)), LOAD_MS);
    waiting.set(id, {
      resolve: (result) => { clearTimeout(timer); resolve(result); },
      reject: (error) => { clearTimeout(timer); reject(error); },
    });
  });
}

// What must be true in a page, as words about what is not.
const LOOK = `(() => {
  const faults = [];
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) {
    const wide = [...document.querySelectorAll('body *')].filter((one) => one.getBoundingClientRect().right > root.clientWidth + 1);
    const name = (one) => one.tagName.toLowerCase() + (one.id ? '#' + one.id : '') + (one.className ? '.' + one.className : '');
    faults.push('scrolls sideways: ' + root.scrollWidth + ' > ' + root.clientWidth + ' ' + wide.slice(0, 3).map(name).join(', '));
  }
  for (const diagram of document.querySelectorAll('.mermaid, code.language-mermaid')) {
    const svg = diagram.querySelector('svg');
    if (!svg || svg.getBoundingClientRect().width < 20) faults.push('a diagram is no svg: ' + diagram.textContent.trim().slice(0, 60));
    else if (/Syntax error/.test(svg.textContent)) faults.push('a diagram has a syntax error');
  }
  for (const picture of document.images) if (picture.naturalWidth === 0) faults.push('no picture: ' + picture.src);
  return faults;
})()`;

const faults = [];
async function evaluate(session, expression) {
  const answer = await send('Runtime.evaluate', { expression, returnByValue: true, awaitPromise: true }, session);
  if (answer.exceptionDetails) throw new Error(answer.exceptionDetails.exception?.description ?? answer.exceptionDetails.text);
  return answer.result.value;
}

async function open({ root, page }, colour) {
  const address = root === null ? page
    : `${origin}${roots.indexOf(root)}/${page.split(path.sep).map(encodeURIComponent).join('/')}`;
  const home = root === null ? `${new URL(page).origin}/` : origin;
  const found = new Set();
  const { targetId } = await send('Target.createTarget', { url: 'about:blank' });
  const { sessionId } = await send('Target.attachToTarget', { targetId, flatten: true });
  let loaded = () => {};
  const listen = ({ method, params, sessionId: session }) => {
    if (session !== sessionId) return;
    if (method === 'Page.loadEventFired') loaded();
    if (method === 'Runtime.consoleAPICalled' && ['error', 'assert'].includes(params.type)) {
      found.add(`console: ${params.args.map((one) => one.value ?? one.description).join(' ')}`);
    }
    if (method === 'Runtime.exceptionThrown') {
      found.add(`exception: ${params.exceptionDetails.exception?.description ?? params.exceptionDetails.text}`);
    }
    if (method === 'Log.entryAdded' && params.entry.level === 'error') found.add(`log: ${params.entry.text} ${params.entry.url ?? ''}`);
    if (method === 'Network.requestWillBeSent' && !/^(data|blob|about):/.test(params.request.url) && !params.request.url.startsWith(home)) {
      found.add(`request off this machine: ${params.request.url}`);
    }
    if (method === 'Network.loadingFailed' && !params.canceled) found.add(`a request failed: ${params.errorText}`);
    if (method === 'Network.responseReceived' && params.response.status >= 400) found.add(`${params.response.status}: ${params.response.url}`);
  };
  listeners.add(listen);
  try {
    for (const domain of ['Page', 'Runtime', 'Log', 'Network']) await send(`${domain}.enable`, {}, sessionId);
    await send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: colour }] }, sessionId);
    for (const pixels of WIDTHS) {
      // Loaded anew for each width: a page may lay itself out by the width that it begins with.
      const load = new Promise((resolve, reject) => {
        const timer = setTimeout(() => reject(new Error(`not loaded in ${LOAD_MS} ms`)), LOAD_MS);
        loaded = () => { clearTimeout(timer); resolve(); };
      });
      load.catch(() => {});
      await send('Emulation.setDeviceMetricsOverride', { width: pixels, height: 900, deviceScaleFactor: 1, mobile: pixels < 500 }, sessionId);
      await send('Page.navigate', { url: address }, sessionId);
      await load;
      let wrong = [];
      // Diagrams are drawn after the page has loaded.
      for (const end = Date.now() + SETTLE_MS; ;) {
        wrong = await evaluate(sessionId, LOOK);
        if (wrong.length === 0 || Date.now() > end) break;
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
      wrong.forEach((fault) => found.add(`${pixels} px: ${fault}`));
      if (options.screenshots) {
        const height = Math.min(await evaluate(sessionId, 'document.documentElement.scrollHeight'), SHOT_HEIGHT);
        const clip = { x: 0, y: 0, width: pixels, height, scale: 1 };
        const { data } = await send('Page.captureScreenshot', { captureBeyondViewport: true, clip }, sessionId);
        const name = `${page.replaceAll(/[^A-Za-z0-9.-]/g, '_').replace(/\.html$/, '')}-${colour}-${pixels}.png`;
        writeFileSync(path.join(options.screenshots, name), Buffer.from(data, 'base64'));
      }
    }
    if (options.print && colour === 'light') {
      console.log(JSON.stringify({ page, value: await evaluate(sessionId, options.print) }));
    }
  } catch (error) {
    found.add(error.message);
  } finally {
    listeners.delete(listen);
    await send('Target.closeTarget', { targetId }).catch(() => {});
  }
  for (const fault of found) faults.push(`${page} (${colour}): ${fault}`);
}

let status = 2;
try {
  if (options.screenshots) mkdirSync(options.screenshots, { recursive: true });
  const work = pages.flatMap((page) => ['light', 'dark'].map((colour) => ({ page, colour })));
  const worker = async () => { for (let one; (one = work.shift());) await open(one.page, one.colour); };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  faults.sort().forEach((fault) => console.error(fault));
  console.error(`browser: ${pages.length} pages in light and dark, at ${WIDTHS.join(' and ')} px: ${faults.length} faults`);
  status = faults.length === 0 ? 0 : 1;
} catch (error) {
  console.error(`browser: ${error.message}`);
} finally {
  const gone = new Promise((resolve) => chromium.once('exit', resolve));
  chromium.kill();
  await Promise.race([gone, new Promise((resolve) => setTimeout(resolve, 5_000))]);
  server.close();
  chromium.kill('SIGKILL');
  // Helpers of the browser may write for a moment longer; a folder that stays is no fault of a page.
  for (let left = 25; left > 0; left -= 1) {
    try {
      rmSync(profile, { recursive: true, force: true });
      break;
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
  }
}
process.exit(status);
