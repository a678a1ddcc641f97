"""Read the bundled variants: forks of a process that has imported this module need not."""

from inferload.deploy.variants import variant

variant.bundled()
