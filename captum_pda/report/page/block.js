// Reads the block of typed arrays that the Python side packed, a file of safetensors; see
// page_file.py.

const ARRAYS = {
  F64: Float64Array,
  F32: Float32Array,
  I32: Int32Array,
  U16: Uint16Array,
  U8: Uint8Array,
};

async function readBlock(id) {
  const letters = atob(document.getElementById(id).textContent.trim());
  const packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i += 1) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const content = await new Response(stream).arrayBuffer();
  const start = 8 + new DataView(content).getUint32(0, true);
  const table = JSON.parse(new TextDecoder().decode(new Uint8Array(content, 8, start - 8)));
  const header = JSON.parse(table.__metadata__.header);
  delete table.__metadata__;
  const arrays = [];
  for (const [number, { dtype, data_offsets: [from, to] }] of Object.entries(table)) {
    arrays[number] = new ARRAYS[dtype](content.slice(start + from, start + to));
  }
  return { header, arrays };
}

function readImage(bytes) {
  return createImageBitmap(new Blob([bytes]));
}
