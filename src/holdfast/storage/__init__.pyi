from holdfast.storage.base import Entry as Entry
from holdfast.storage.base import Lease as Lease
from holdfast.storage.base import ObjectWriter as ObjectWriter
from holdfast.storage.base import Storage as Storage
from holdfast.storage.base import StorageReader as StorageReader
from holdfast.storage.local.storage import LocalStorage as LocalStorage
from holdfast.storage.memory import MemoryStorage as MemoryStorage
from holdfast.storage.open import open_storage as open_storage
