"""What the library costs, in numbers that do not depend on the machine."""
