"""How far the list of strongest regions can be relied on.

python benchmarks/stability.py --photos photos --folder stability

Each photo is explained as it is, re-encoded as JPEG of quality 75, and with other superpixels. The
regions listed for the photo as it is are looked at in the two other maps: whose sign turns there,
which pairs of one list change places, and were these marked as uncertain? Evidence is kept in the
folder, and a second call goes on from there.
"""

from __future__ import annotations

import argparse
import io
import itertools
import tempfile
from pathlib import Path

import numpy as np
import torch
from league.networks import (
    PREPROCESSING,
    Network,
    Photo,
    eligible_photos,
    invented_photos,
    load_network,
)
from league.ours import WithQuickPasses
from PIL import Image

from captum_pda import PDA, WindowEvidence, strongest_regions

#: Superpixels of about the default sizes, in other places.
OTHER_SUPERPIXELS = (10, 21, 50, 100, 210)


def reencoded(photo: Photo, network: str) -> torch.Tensor:
    """The photo after JPEG of quality 75."""
    _, _, mean, std = PREPROCESSING[network]
    mean, std = (torch.tensor(one).reshape(3, 1, 1) for one in (mean, std))
    pixels = ((photo.image[0] * std + mean).clamp(0, 1) * 255).round().byte()
    file = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=75)
    again = torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1) / 255
    return ((again - mean) / std)[None]


def evidence_of(network: Network, photo: Photo, kind: str, folder: Path) -> WindowEvidence:
    """The evidence of a photo in one of three ways, made once."""
    path = folder / f"{Path(photo.name).stem}_{kind}.safetensors"
    if not path.exists():
        image = reencoded(photo, network.name) if kind == "jpeg" else photo.image
        other = OTHER_SUPERPIXELS if kind == "segmentation" else None
        quick = network.fast is not None
        pda = PDA(
            WithQuickPasses(network) if quick else network.model,
            engine="dense" if quick else "auto",
        )
        pda.evidence(image, superpixels=other).save(path)
        print(path.name, flush=True)
    return WindowEvidence.load(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("stability"))
    parser.add_argument("--network", default="efficientnet_lite0")
    parser.add_argument("--runtime", default="openvino")
    parser.add_argument("-n", type=int, default=10, help="how many photos")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if options.tiny:
        options.folder = Path(tempfile.mkdtemp())
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.tiny:
        network = load_network("tiny")
        photos = invented_photos(network)
    else:
        network = load_network(options.network, options.runtime)
        every = eligible_photos(network, options.photos, options.folder)
        photos = every[:: max(1, len(every) // options.n)][: options.n]
    kinds = ("segmentation",) if options.tiny else ("jpeg", "segmentation")
    # Of each way: regions, signs that turned, marked ones of these; pairs, turned, marked.
    counts = {kind: np.zeros(6, dtype=int) for kind in kinds}
    marked = tied = 0
    for photo in photos:
        base = evidence_of(network, photo, "base", options.folder)
        lists = strongest_regions(base, photo.target)
        marked += sum(region.uncertain for regions in lists for region in regions)
        tied += sum(region.tied for regions in lists for region in regions)
        for kind, count in counts.items():
            other = evidence_of(network, photo, kind, options.folder)
            values = other.attribution(photo.target)[0, 0].numpy()
            for sign, regions in zip((1, -1), lists, strict=True):
                means = [sign * float(values[region.pixels].mean()) for region in regions]
                turned = [mean <= 0 for mean in means]
                unsure = [region.uncertain for region in regions]
                count[0] += len(regions)
                count[1] += sum(turned)
                count[2] += sum(a and b for a, b in zip(turned, unsure, strict=True))
                for a, b in itertools.combinations(range(len(regions)), 2):
                    count[3] += 1
                    if means[a] < means[b]:
                        count[4] += 1
                        count[5] += unsure[a] or unsure[b] or any(r.tied for r in regions[a:b])
    listed = next(iter(counts.values()))[0]
    print(f"{len(photos)} photos, {listed} regions listed, {marked} of them marked as uncertain,")
    print(f"  {tied} as about as strong as the next")
    for kind, (regions, turned, known, pairs, swapped, told) in counts.items():
        print(f"{kind}: the sign of {turned} of {regions} regions turns ({known} were marked);")
        print(f"  {swapped} of {pairs} pairs change places ({told} were marked)")


if __name__ == "__main__":
    main()
