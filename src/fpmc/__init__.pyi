from .images import ImageSet as ImageSet
