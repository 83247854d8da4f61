// Reads the block of typed arrays that the Python side packed; see page_file.py for its layout.

const ARRAYS = {
  float64: Float64Array,
  float32: Float32Array,
  int32: Int32Array,
  uint16: Uint16Array,
  uint8: Uint8Array,
};

async function readBlock(id) {
  const text = document.getElementById(id).textContent.trim();
  const letters = atob(text);
  const packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i += 1) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const content = await new Response(stream).arrayBuffer();
  const start = 4 + new DataView(content).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(content, 4, start - 4)));
  const arrays = header.arrays.map((entry) => readArray(content, start, entry));
  return { header, arrays };
}

function readArray(content, start, { type, shape, offset }) {
  const count = shape.reduce((product, side) => product * side, 1);
  return new ARRAYS[type](content, start + offset, count);
}

function readImage(bytes) {
  return createImageBitmap(new Blob([bytes]));
}
